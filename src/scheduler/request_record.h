// SPDX-License-Identifier: Apache-2.0
// What a scheduler knows of one request, and lists of requests by rank.
//
// The tokens of a request are those of `prompt`, then new_tokens from num_in_prompt on: when a
// request begins anew, its tokens so far move into its prompt, so that their blocks can be found.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "quire/block_manager.h"
#include "quire/request.h"

namespace quire {

// Smaller goes first; strict, since ids differ.
struct Rank {
  std::int64_t key = 0;  // priority * aging_steps + the step of arrival
  RequestId id{};
  // NOLINTNEXTLINE(modernize-use-nullptr): the 0 is the compiler's
  friend auto operator<=>(const Rank&, const Rank&) = default;
};

struct RequestRecord {
  enum class Status : std::uint8_t {
    kFree,
    kWaiting,  // no sequence
    kPaused,   // resident, with what a partial release has left
    kSwapped,
    kRunning,
  };

  Status status = Status::kFree;
  Rank rank{};
  std::int32_t priority = 0;
  Prompt prompt;
  std::vector<Token> new_tokens;
  std::int64_t num_in_prompt = 0;  // of new_tokens
  std::int64_t max_new_tokens = 0;
  std::int64_t num_cross_tokens = 0;
  std::optional<std::chrono::nanoseconds> deadline;
  SequenceId sequence{};
  std::int64_t num_computed = 0;   // tokens committed to the sequence
  std::int64_t num_scheduled = 0;  // appended for the step under way, drafts included
  std::vector<Token> drafts;       // guesses of the tokens that follow
  std::int64_t num_drafted = 0;    // of drafts: computed in slots that are not committed
  bool cross_is_stored = false;
  bool needs_token = false;  // everything is computed: the caller has the word

  RequestId id() const noexcept { return rank.id; }
  std::int64_t num_tokens() const noexcept {
    return prompt.num_tokens() + static_cast<std::int64_t>(new_tokens.size()) - num_in_prompt;
  }
  bool is_decode() const noexcept { return num_to_compute() == 1; }
  std::int64_t num_to_compute() const noexcept { return num_tokens() - num_computed; }
  // With all the tokens that may still come.
  std::int64_t final_length() const noexcept {
    return prompt.num_tokens() - num_in_prompt + max_new_tokens;
  }
  std::int64_t num_cross_rows() const noexcept { return cross_is_stored ? 0 : num_cross_tokens; }
  bool holds_blocks() const noexcept {
    return status == Status::kRunning || status == Status::kPaused;
  }

  // Tokens [first, first + count) as up to two runs: in the prompt and behind it.
  struct Runs {
    std::span<const Token> in_prompt;
    std::span<const Token> behind;
  };
  Runs tokens(std::int64_t first, std::int64_t count) const {
    const std::int64_t in_prompt = std::clamp<std::int64_t>(prompt.num_tokens() - first, 0, count);
    Runs runs;
    if (in_prompt > 0) {
      runs.in_prompt = prompt.tokens().subspan(static_cast<std::size_t>(first),
                                               static_cast<std::size_t>(in_prompt));
    }
    if (count > in_prompt) {
      const std::int64_t begin = first + in_prompt - prompt.num_tokens() + num_in_prompt;
      runs.behind = std::span(new_tokens)
                        .subspan(static_cast<std::size_t>(begin),
                                 static_cast<std::size_t>(count - in_prompt));
    }
    return runs;
  }
};

using RequestIndex = std::uint32_t;  // of a record

// Requests in the order of rank, best first. Inserting and erasing move 4 bytes per request behind.
class RankedList {
 public:
  explicit RankedList(const std::deque<RequestRecord>& records) : records_(&records) {}

  bool empty() const noexcept { return indices_.empty(); }
  std::size_t size() const noexcept { return indices_.size(); }
  RequestIndex operator[](std::size_t i) const noexcept { return indices_[i]; }
  RequestIndex back() const noexcept { return indices_.back(); }
  auto begin() const noexcept { return indices_.begin(); }
  auto end() const noexcept { return indices_.end(); }

  // Room for so many in all, growing as push_back does.
  void reserve(std::size_t size) {
    if (size > indices_.capacity()) indices_.reserve(std::max(size, 2 * indices_.capacity()));
  }
  void insert(RequestIndex index) { indices_.insert(place_of(index), index); }
  // REQUIRES: it is in the list.
  void erase(RequestIndex index) { indices_.erase(place_of(index)); }
  bool contains(RequestIndex index) const {
    const auto place = place_of(index);
    return place != indices_.end() && *place == index;
  }

 private:
  std::vector<RequestIndex>::const_iterator place_of(RequestIndex index) const {
    return std::ranges::lower_bound(indices_, (*records_)[index].rank, {},
                                    [this](RequestIndex i) { return (*records_)[i].rank; });
  }

  const std::deque<RequestRecord>* records_;
  std::vector<RequestIndex> indices_;
};

}  // namespace quire
