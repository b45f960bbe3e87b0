// SPDX-License-Identifier: Apache-2.0
// The plug-in libquire_torch.so.
#include "registry/plugin.h"

#include "backends/torch/torch_backend.h"

namespace {

// That this code runs at all means that the libraries were found.
quire::Availability probe() {
  return {.available = true, .version = quire::torch_version(), .reasons = {}};
}

}  // namespace

extern "C" QUIRE_API const quire::PluginEntry* quire_plugin() {
  static const quire::PluginEntry kEntry =
      quire::plugin_entry(probe, quire::torch_levels, quire::make_torch_backend);
  return &kEntry;
}
