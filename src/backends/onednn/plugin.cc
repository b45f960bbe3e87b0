// SPDX-License-Identifier: Apache-2.0
// The plug-in libquire_onednn.so.
#include "registry/plugin.h"

#include "backends/onednn/onednn_backend.h"

namespace {

// That this code runs at all means that the library was found.
quire::Availability probe() {
  return {.available = true, .version = quire::onednn_version(), .reasons = {}};
}

// oneDNN chooses its own (ONEDNN_MAX_CPU_ISA limits it).
std::vector<std::string> isa_levels() {
  return {};
}

}  // namespace

extern "C" QUIRE_API const quire::PluginEntry* quire_plugin() {
  static const quire::PluginEntry kEntry =
      quire::plugin_entry(probe, isa_levels, quire::make_onednn_backend);
  return &kEntry;
}
