// SPDX-License-Identifier: Apache-2.0
// The reference backend: the contract of docs/numerics.md in double precision, short enough to be
// read as its specification. Every other backend is held against it.
//
// Single-threaded and unhurried. Takes every spec whose layout quire knows.
#pragma once

#include <memory>

#include "quire/backend.h"
#include "quire/registry.h"

namespace quire {

std::unique_ptr<AttentionBackend> make_reference_backend(const BackendOptions& options);

}  // namespace quire
