// SPDX-License-Identifier: Apache-2.0
// A backend that exists only in tests: it proves that the API carries a private layout. Its caches
// hold scrambled blocks (opaque_record.h) that nobody else can read; for each call it unseals those
// that the call looks at, lets the portable CPU backend compute, and seals those that changed.
//
// Like every backend it also takes the layouts that quire knows. Unlike a real one it allocates.
#pragma once

#include <cstdint>
#include <memory>

#include "opaque_backend/opaque_record.h"
#include "quire/backend.h"

namespace quire::testing {

// What it does wrong on purpose, so that tests can show that it would be found.
enum class OpaqueFault : std::uint8_t {
  kNone,
  kAppendsToEmptyBlocks,  // what a block held before is lost
  kCopiesNoV,             // of blocks that are copied
  kExportsNothing,
  kImportsFirstLayer,  // and no other
  kWritesPastCache,    // one byte, after an append
};

struct OpaqueBackendOptions {
  Pieces pieces = Pieces::kApart;
  bool fuses_append = false;  // takes new K and V in attend only
  OpaqueFault fault = OpaqueFault::kNone;
};

std::unique_ptr<AttentionBackend> make_opaque_backend(const OpaqueBackendOptions& options = {});

}  // namespace quire::testing
