// SPDX-License-Identifier: Apache-2.0
// How a sequence gives back blocks, decided by cost alone. Pure functions.
#pragma once

#include <cstdint>

#include "quire/scheduler.h"

namespace quire {

enum class PreemptionKind : std::uint8_t { kPartialRelease, kSwap, kRecompute };

// What is asked of a sequence, and what it could do.
struct PreemptionCase {
  std::int64_t num_computed = 0;  // tokens
  std::int64_t num_to_cut = 0;    // tokens at its end in as many blocks as are missing
  bool can_swap = false;          // the host has room
};

// Seconds to compute tokens [first, last) again.
constexpr double recompute_seconds(const PreemptionOptions& options, std::int64_t first,
                                   std::int64_t last) noexcept {
  const auto a = static_cast<double>(first);
  const auto b = static_cast<double>(last);
  return options.token_seconds * (b - a) + options.key_seconds * (b * b - a * a) / 2;
}

// Seconds to copy so many tokens out and in again.
constexpr double swap_seconds(const PreemptionOptions& options, std::int64_t num_tokens) noexcept {
  return 2 * options.byte_seconds * static_cast<double>(options.token_bytes) *
         static_cast<double>(num_tokens);
}

// The cheapest that is allowed and possible. A partial release that would leave nothing is a
// recomputation, which is always possible.
constexpr PreemptionKind choose_preemption(const PreemptionOptions& options,
                                           const PreemptionCase& victim) noexcept {
  PreemptionKind best = PreemptionKind::kRecompute;
  double best_seconds = recompute_seconds(options, 0, victim.num_computed);
  if (options.allow_swap && victim.can_swap &&
      swap_seconds(options, victim.num_computed) <= best_seconds) {
    best = PreemptionKind::kSwap;
    best_seconds = swap_seconds(options, victim.num_computed);
  }
  const std::int64_t num_left = victim.num_computed - victim.num_to_cut;
  if (options.allow_partial && num_left > 0 &&
      recompute_seconds(options, num_left, victim.num_computed) <= best_seconds) {
    best = PreemptionKind::kPartialRelease;
  }
  return best;
}

}  // namespace quire
