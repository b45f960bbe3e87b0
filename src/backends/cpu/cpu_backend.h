// SPDX-License-Identifier: Apache-2.0
// The backend `cpu`: every feature of the contract, on a thread pool of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "quire/registry.h"

namespace quire {

// Throws Error(kInvalidArgument) for a level that is unknown or not on this machine.
std::unique_ptr<AttentionBackend> make_cpu_backend(const BackendOptions& options);

// Levels that this machine can run, best first.
std::vector<std::string> cpu_isa_levels();

}  // namespace quire
