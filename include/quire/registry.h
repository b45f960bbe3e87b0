// SPDX-License-Identifier: Apache-2.0
// The ordered table of backends and the choice among them.
//
// Nothing falls back in silence: a name that is unknown or unusable is an error with its reasons.
// QUIRE_BACKEND names the backend where the caller names none; QUIRE_CPU_ISA the level of `cpu`;
// QUIRE_PLUGIN_PATH the folders of plug-ins (libquire_NAME.so) instead of those of the
// installation.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/backend.h"
#include "quire/executor.h"
#include "quire/export.h"

namespace quire {

// More than any machine has; each costs a stack.
inline constexpr int kMaxBackendThreads = 4096;

// All but `isa` are of CPU backends only; results are the same bits for all of them.
struct BackendOptions {
  // At most kMaxBackendThreads. 0: as many as `cpus`, the executor has or the process may run on.
  int num_threads = 0;
  std::string isa;  // level of a CPU backend; empty: QUIRE_CPU_ISA, else the best
  // Pins the threads that the backend starts, thread i to cpus[i % size]; thread 0 is whoever calls
  // and stays where it is. Empty: the system moves them, unless there is a thread for every CPU
  // that the process may run on; those keep to one each, and out of the caller's way, unless
  // QUIRE_CPU_PIN is 0. Give two backends of one process CPUs of their own, and none waits for the
  // other.
  std::vector<int> cpus = {};
  // Threads of the caller instead of own ones. Must outlive the backend.
  Executor* executor = nullptr;
};

// Whether a backend can run on this machine, or every reason why not. Reasons of one that can say
// why a level that it might have is missing.
struct [[nodiscard]] Availability {
  bool available = false;
  std::string version;
  std::vector<std::string> reasons;
};

struct BackendEntry {
  const char* name;
  const char* summary;
  bool automatic;  // may be chosen without being named
  bool plugin;     // a shared object of its own, loaded by the functions below
  Availability (*probe)();
  std::vector<std::string> (*isa_levels)();  // levels usable on this machine, best first
  std::unique_ptr<AttentionBackend> (*make)(const BackendOptions&);
};

// Best first.
QUIRE_API std::span<const BackendEntry> backend_table() noexcept;

// Throws Error(kInvalidArgument) for an unknown name, with the known ones, and Error(kUnsupported)
// with the reasons for an unusable one.
QUIRE_API std::unique_ptr<AttentionBackend> make_backend(std::string_view name,
                                                         const BackendOptions& options = {});

// QUIRE_BACKEND if set, else the first automatic entry that is available and supports the spec.
// Throws Error(kUnsupported) with every reason of every backend if there is none.
QUIRE_API std::unique_ptr<AttentionBackend> choose_backend(const AttentionSpec& spec,
                                                           const BackendOptions& options = {});

// One row of the support matrix: a spec that differs from the plain one in one feature.
struct FeatureProbe {
  const char* name;
  AttentionSpec spec;
};
QUIRE_API std::span<const FeatureProbe> feature_probes();

}  // namespace quire
