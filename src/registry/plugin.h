// SPDX-License-Identifier: Apache-2.0
// Backends outside the core are plug-ins: a shared object libquire_NAME.so that holds the adapter
// and its own copy of what it uses of quire, and exports one C function. quire_add_plugin in
// cmake/plugins.cmake builds one, and a row of it in registry.cc is one line.
//
//   extern "C" QUIRE_API const quire::PluginEntry* quire_plugin() {
//     static const quire::PluginEntry kEntry = quire::plugin_entry(probe, isa_levels, make);
//     return &kEntry;
//   }
//
// Nothing is loaded before its backend is probed or made. A plug-in that is absent, that lacks a
// library, or that was built against another quire is a reason in Availability. One that was found
// good stays in the process: its backends, and the errors they throw, hold its code.
//
// Thread safety: all functions may be called from any thread. No state is kept here: the dynamic
// loader counts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/sanitizers.h"
#include "quire/registry.h"
#include "quire/version.h"
#include "registry/device_meter.h"

namespace quire {

// The border between a program and a plug-in. `size_bytes` and `abi` keep their places for ever;
// nothing behind them is read before both have been found equal.
struct PluginEntry {
  std::uint64_t size_bytes = 0;
  const char* abi = nullptr;  // plugin_abi() as the plug-in was compiled
  // These may throw. The version of Availability is that of the vendor's library.
  Availability (*probe)() = nullptr;
  std::vector<std::string> (*isa_levels)() = nullptr;
  std::unique_ptr<AttentionBackend> (*make)(const BackendOptions& options) = nullptr;
  // Null where the backend computes on the host.
  std::unique_ptr<DeviceMeter> (*make_meter)() = nullptr;
};

inline constexpr const char* kPluginSymbol = "quire_plugin";
using PluginFunction = const PluginEntry* (*)();

// Raise it when a virtual function of a class that crosses the border, or the meaning of anything
// that does, changes without changing a size below.
inline constexpr int kPluginRevision = 3;

// What must be equal on both sides: the version, the sizes of all that crosses, the standard
// library, and whether a sanitizer watches. Inline, so that each side tells how it was compiled.
inline std::string plugin_abi() {
  std::string text = "quire " + std::to_string(QUIRE_VERSION_MAJOR) + "." +
                     std::to_string(QUIRE_VERSION_MINOR) + "." +
                     std::to_string(QUIRE_VERSION_PATCH) + " interface " +
                     std::to_string(kPluginRevision) + " sizes";
  for (const std::size_t size :
       {sizeof(AttentionSpec), sizeof(AttentionParams), sizeof(BatchView), sizeof(KvCacheView),
        sizeof(KvLayout), sizeof(PreparedBatch), sizeof(TensorView), sizeof(BackendInfo),
        sizeof(Support), sizeof(BackendOptions), sizeof(Availability), sizeof(BatchBounds)}) {
    text += " " + std::to_string(size);
  }
#if defined(_GLIBCXX_USE_CXX11_ABI)
  text += " libstdc++ " + std::to_string(_GLIBCXX_USE_CXX11_ABI);
#endif
  if (kHasAddressSanitizer) text += " asan";
  if (kHasThreadSanitizer) text += " tsan";
  return text;
}

inline PluginEntry plugin_entry(Availability (*probe)(), std::vector<std::string> (*isa_levels)(),
                                std::unique_ptr<AttentionBackend> (*make)(const BackendOptions&),
                                std::unique_ptr<DeviceMeter> (*make_meter)() = nullptr) {
  static const std::string kAbi = plugin_abi();
  return {.size_bytes = sizeof(PluginEntry),
          .abi = kAbi.c_str(),
          .probe = probe,
          .isa_levels = isa_levels,
          .make = make,
          .make_meter = make_meter};
}

// Where plug-ins are looked for, first to last: the folders of QUIRE_PLUGIN_PATH (separated by
// colons) and no other if it is set, even to nothing; else the folder of the library or program
// that this code is part of, those where an installation keeps plug-ins relative to it, and the one
// that quire was configured to be installed to.
std::vector<std::string> plugin_folders();

// The entry, or why there is none. The first folder that holds the file decides.
struct PluginLoad {
  const PluginEntry* entry = nullptr;
  std::string reason;
};
PluginLoad load_plugin(std::string_view name);

// The functions of a row, by the plug-in's name. What the entry's functions throw becomes a reason
// in probe_plugin, and is passed on by make_plugin.
Availability probe_plugin(std::string_view name);
std::vector<std::string> plugin_isa_levels(std::string_view name);
std::unique_ptr<AttentionBackend> make_plugin(std::string_view name, const BackendOptions& options);
// Null where the plug-in has none, or is absent.
std::unique_ptr<DeviceMeter> make_plugin_meter(std::string_view name);

// A name as a template argument: rows have plain functions.
template <std::size_t kSize>
struct PluginName {
  char text[kSize] = {};
  consteval PluginName(const char (&name)[kSize]) {  // NOLINT(google-explicit-constructor)
    std::copy_n(name, kSize, text);
  }
};

// A row of the registry's table: plugin_row<"openvino">("what it is", false).
template <PluginName kName>
constexpr BackendEntry plugin_row(const char* summary, bool automatic) {
  return {
      .name = kName.text,
      .summary = summary,
      .automatic = automatic,
      .plugin = true,
      .probe = [] { return probe_plugin(kName.text); },
      .isa_levels = [] { return plugin_isa_levels(kName.text); },
      .make = [](const BackendOptions& options) { return make_plugin(kName.text, options); },
  };
}

}  // namespace quire
