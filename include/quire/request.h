// SPDX-License-Identifier: Apache-2.0
// A request as the caller sees it: what goes in, what a step reports, and how it ends.
//
// A request is waiting, running, or preempted and waiting again, until it ends exactly once, for
// one of the reasons below. Its tokens are its prompt and what the caller has added to it: sampling
// is the caller's, so a step names the requests whose next token can be chosen now.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "quire/export.h"
#include "quire/kv_ids.h"
#include "quire/prompt.h"

namespace quire {

// Given out in the order of submission, from 1; never reused. The default names no request.
struct RequestId {
  std::uint64_t value = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): the 0 is the compiler's
  friend auto operator<=>(const RequestId&, const RequestId&) = default;
};

struct Request {
  Prompt prompt;  // hashed once, by the caller's thread
  // Tokens that may be added; the request ends with the last of them. 0: the prompt alone is
  // computed.
  std::int64_t max_new_tokens = 1;
  std::int32_t priority = 0;  // class: lower goes first
  // In the time of SchedulerOptions::clock: ended by the first step that begins at it or later.
  std::optional<std::chrono::nanoseconds> deadline{};
  std::int64_t num_cross_tokens = 0;  // of the encoder, for groups of cross-attention
};

enum class FinishReason : std::uint8_t {
  kLength,   // has all its tokens
  kStopped,  // the caller said so
  kCancelled,
  kDeadline,
  kTooLarge,  // prompt and new tokens do not fit, not even alone
};
inline constexpr int kNumFinishReasons = 5;

QUIRE_API const char* finish_reason_name(FinishReason reason) noexcept;

struct FinishedRequest {
  RequestId id{};
  FinishReason reason = FinishReason::kLength;
  std::int64_t num_new_tokens = 0;
  std::string detail{};  // kTooLarge: tokens and bytes that it needs, and that there are
};

// All tokens of the request are computed: `row` of the outputs of the step decides the next one.
// It does nothing more until Scheduler::extend or finish. Of the drafts given with its last token
// the first num_drafts have been computed too, in the rows that follow: row + i decides what comes
// after the i-th of them.
struct ReadyRequest {
  RequestId id{};
  std::int64_t row = 0;
  std::int64_t num_drafts = 0;
};

// What a step has come to. Valid until the next one.
struct StepResult {
  std::int64_t num_tokens = 0;     // computed
  std::int64_t num_sequences = 0;  // in the batch
  std::span<const ReadyRequest> ready{};
  std::span<const FinishedRequest> finished{};  // all that ended since the last step, each once
};

}  // namespace quire
