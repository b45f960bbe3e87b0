// SPDX-License-Identifier: Apache-2.0
// The backend `onednn`: matmul and softmax primitives of oneDNN over K and V that are gathered from
// their blocks (docs/vendor_backends.md). For users who deploy oneDNN, as a peer in benchmarks, and
// as an oracle that others wrote.
#pragma once

#include <memory>
#include <string>

#include "quire/backend.h"
#include "quire/registry.h"

namespace quire {

std::unique_ptr<AttentionBackend> make_onednn_backend(const BackendOptions& options);

// The same, with products of 16-bit formats even where oneDNN has no fast kernel for them: what a
// test needs on a machine that would widen them.
std::unique_ptr<AttentionBackend> make_onednn_backend_in_format(const BackendOptions& options);

// "3.2.0", of the library that is loaded.
std::string onednn_version();

}  // namespace quire
