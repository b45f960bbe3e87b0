// SPDX-License-Identifier: Apache-2.0
// The plug-in libquire_openvino.so.
#include "registry/plugin.h"

#include "backends/openvino/openvino_backend.h"
#include "backends/openvino/paged_attention.h"

namespace {

// Throws what is wrong with OpenVINO's own plug-in for CPUs, if anything.
quire::Availability probe() {
  return {.available = true, .version = quire::openvino::runtime_facts().version, .reasons = {}};
}

}  // namespace

extern "C" QUIRE_API const quire::PluginEntry* quire_plugin() {
  static const quire::PluginEntry kEntry =
      quire::plugin_entry(probe, quire::openvino::levels, quire::openvino::make_backend);
  return &kEntry;
}
