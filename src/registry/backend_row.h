// SPDX-License-Identifier: Apache-2.0
// What can be said of a backend on this machine: the row that `quire info` and quire_info show.
#pragma once

#include <string>
#include <vector>

#include "quire/registry.h"

namespace quire {

struct BackendRow {
  const BackendEntry* entry = nullptr;
  Availability availability;
  std::vector<std::string> levels;
  BackendInfo info;               // where available
  std::vector<Support> features;  // one per probe, where available
};

// Makes the backend, if it is available, and asks it. One that cannot be made is not available, for
// the reason that it throws.
BackendRow describe_backend(const BackendEntry& entry);

}  // namespace quire
