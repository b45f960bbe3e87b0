// SPDX-License-Identifier: Apache-2.0
// The plug-in libquire_torch.so.
#include "registry/plugin.h"

#include "backends/torch/torch_backend.h"

extern "C" QUIRE_API const quire::PluginEntry* quire_plugin() {
  static const quire::PluginEntry kEntry =
      quire::plugin_entry(quire::probe_torch, quire::torch_levels, quire::make_torch_backend);
  return &kEntry;
}
