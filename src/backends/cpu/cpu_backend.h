// SPDX-License-Identifier: Apache-2.0
// The backend `cpu`: every feature of the contract, on a thread pool of its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_features.h"
#include "quire/registry.h"

namespace quire {

// Throws Error(kInvalidArgument) for a level that is unknown or not on this machine, with what is
// missing.
std::unique_ptr<AttentionBackend> make_cpu_backend(const BackendOptions& options);

// "needs X, Y" for a level that cannot run with these features, "does not exist" for one that is
// unknown, empty for one that can.
std::string missing_for_cpu_level(std::string_view name, const CpuFeatures& features);

// Levels that this machine can run, best first.
std::vector<std::string> cpu_isa_levels();

}  // namespace quire
