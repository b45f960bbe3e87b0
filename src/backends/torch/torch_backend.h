// SPDX-License-Identifier: Apache-2.0
// The backend `torch`: scaled dot product attention of PyTorch, sequence by sequence, over K and V
// that are gathered from their blocks (docs/vendor_backends.md). For users who deploy PyTorch, as a
// peer in benchmarks, and as an oracle that others wrote.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "quire/backend.h"
#include "quire/registry.h"

namespace quire {

// Levels are where torch computes, and where its caches lie: "cuda" and device memory where it can,
// and "cpu" and host memory.
std::vector<std::string> torch_levels();
// With the reason for the level that is missing. Not available: another torch was loaded than this
// was compiled for.
Availability probe_torch();
// At the first level unless the options name one.
std::unique_ptr<AttentionBackend> make_torch_backend(const BackendOptions& options);
std::string torch_version();

}  // namespace quire
