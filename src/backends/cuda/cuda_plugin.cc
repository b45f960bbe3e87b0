// SPDX-License-Identifier: Apache-2.0
// The plug-in of the CUDA backend (registry/plugin.h).
#include <cstdlib>
#include <string_view>

#include "backends/cuda/cuda_runtime.h"
#include "backends/gpu/gpu_backend.h"
#include "backends/gpu/gpu_meter.h"
#include "registry/plugin.h"

namespace {

std::vector<std::string> no_levels() {
  return {};
}

std::unique_ptr<quire::AttentionBackend> make(const quire::BackendOptions&) {
  const char* checks = std::getenv("QUIRE_CHECK_BLOCKS");
  return quire::gpu::make_gpu_backend(
      quire::gpu::make_cuda_runtime(),
      {.name = "cuda", .check_blocks = checks != nullptr && std::string_view(checks) != "0"});
}

std::unique_ptr<quire::DeviceMeter> make_meter() {
  return quire::gpu::make_gpu_meter(quire::gpu::make_cuda_runtime());
}

}  // namespace

extern "C" QUIRE_API const quire::PluginEntry* quire_plugin() {
  static const quire::PluginEntry kEntry =
      quire::plugin_entry(quire::gpu::probe_cuda, no_levels, make, make_meter);
  return &kEntry;
}
