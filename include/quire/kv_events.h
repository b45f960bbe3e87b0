// SPDX-License-Identifier: Apache-2.0
// What a router outside wants to know of the prefix cache: which contents can be found here.
//
// A content is stored when its first copy can be found and removed when its last one cannot.
// Partly filled blocks make no events.
#pragma once

#include <cstdint>
#include <span>

#include "quire/export.h"
#include "quire/kv_ids.h"
#include "quire/prompt.h"

namespace quire {

struct KvEvent {
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared };

  Kind kind = Kind::kCleared;
  int group = 0;
  Digest digest{};                  // stored, removed
  Digest parent{};                  // stored: the block before, or the root of its scope
  std::span<const Token> tokens{};  // stored: [block_size], valid during the call; empty on swap in
                                    // where the manager keeps no tokens
};

// Called from inside BlockManager, in order, on its thread. Must not call back into the manager.
class QUIRE_API KvEventSink {
 public:
  virtual ~KvEventSink() = default;
  virtual void on_event(const KvEvent& event) noexcept = 0;
};

}  // namespace quire
