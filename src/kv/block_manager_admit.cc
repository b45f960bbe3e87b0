// SPDX-License-Identifier: Apache-2.0
// Admission: what a prompt finds in the cache, what it needs beyond that, and taking both.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "kv/block_manager_state.h"
#include "kv/mutation.h"
#include "kv/reserve_more.h"

namespace quire {

void BlockManager::State::require_request(const Prompt& prompt, const AdmitOptions& request) const {
  constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
  require(prompt.num_tokens() >= 1, "a prompt needs at least one token");
  require(prompt.block_size() == options.block_size, "the prompt was made for blocks of ",
          prompt.block_size(), " tokens, the cache has blocks of ", options.block_size);
  require(request.num_lookahead >= 0 && request.num_lookahead <= kMaxTokens - prompt.num_tokens(),
          "num_lookahead must be between 0 and ", kMaxTokens - prompt.num_tokens(), ", is ",
          request.num_lookahead);
  require(request.max_chunk >= 0, "max_chunk must not be negative, is ", request.max_chunk);
  const bool has_cross = std::ranges::any_of(options.groups, [](const LayerGroup& group) {
    return group.alignment == Alignment::kUnaligned;
  });
  require(request.num_cross_tokens >= 0 && request.num_cross_tokens <= kMaxTokens,
          "num_cross_tokens must be between 0 and ", kMaxTokens, ", is ", request.num_cross_tokens);
  require(has_cross || request.num_cross_tokens == 0,
          "there is no group for cross-attention, but num_cross_tokens is ",
          request.num_cross_tokens);
}

// Groups without a window: the common run of hits from the first block on.
std::int64_t BlockManager::State::find_full_prefix(const Prompt& prompt,
                                                   std::int64_t max_blocks) const {
  const auto size = static_cast<std::size_t>(options.block_size);
  const auto key_of = [&](int g, std::int64_t block) -> PrefixIndex::Key {
    return {.digest = prompt.key(block),
            .parent = prompt.parent_key(block),
            .extra = prompt.extra_digest(block),
            .group = g,
            .tokens = prompt.tokens().subspan(static_cast<std::size_t>(block) * size, size)};
  };
  std::int64_t num_blocks = max_blocks;
  for (const bool windowed : {false, true}) {
    for (int g = 0; g < num_groups(); ++g) {
      if (is_cross(g) || has_window(g) != windowed) continue;
      std::vector<BlockId>& hits = found[static_cast<std::size_t>(g)];
      hits.clear();
      reserve_more(hits, static_cast<std::size_t>(num_blocks));
      for (std::int64_t i = 0; i < num_blocks; ++i) {
        const BlockId block = pool_of(g).index.find(key_of(g, i));
        if (block == kNullBlock && !windowed) break;
        hits.push_back(block);
      }
      num_blocks = static_cast<std::int64_t>(hits.size());
    }
  }
  return num_blocks;
}

// The longest prefix of at most num_blocks of which windowed groups still have what a query behind
// it sees: a run of hits that ends there and reaches back far enough, and the sinks.
std::int64_t BlockManager::State::fit_windows(std::int64_t num_blocks) const {
  for (bool fits = false; !fits;) {
    fits = true;
    for (int g = 0; g < num_groups() && num_blocks > 0; ++g) {
      if (is_cross(g) || !has_window(g)) continue;
      const std::vector<BlockId>& hits = found[static_cast<std::size_t>(g)];
      runs.assign(1, 0);  // runs[n]: hits that end before block n without a gap
      for (std::int64_t i = 0; i < num_blocks; ++i) {
        runs.push_back(hits[static_cast<std::size_t>(i)] == kNullBlock ? 0 : runs.back() + 1);
      }
      std::int64_t num_leading = 0;
      while (num_leading < num_blocks &&
             hits[static_cast<std::size_t>(num_leading)] != kNullBlock) {
        ++num_leading;
      }
      const auto has_needed = [&](std::int64_t n) {
        const std::int64_t begin = first_needed_block(g, n * options.block_size);
        return runs[static_cast<std::size_t>(n)] >= n - begin &&
               num_leading >= std::min(n, num_sink_blocks(g));
      };
      std::int64_t fitting = num_blocks;
      while (fitting > 0 && !has_needed(fitting)) --fitting;
      if (fitting < num_blocks) fits = false;  // another group may want to be asked again
      num_blocks = fitting;
    }
  }
  return num_blocks;
}

// Tokens behind the full blocks that a partly filled block of every group holds.
std::int64_t BlockManager::State::find_tails(const Prompt& prompt, std::int64_t num_blocks) const {
  if (!options.share_tails) return 0;
  const std::int64_t first = num_blocks * options.block_size;
  const std::int64_t limit =
      std::min<std::int64_t>(prompt.num_tokens() - 1 - first, options.block_size - 1);
  if (limit <= 0) return 0;
  std::int64_t num_tokens = limit;
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g)) continue;
    const PrefixIndex::Tail tail = pool_of(g).index.find_tail(
        {.digest = {},
         .parent = prompt.parent_key(num_blocks),
         .extra = prompt.extra_digest(num_blocks),
         .group = g,
         .tokens = prompt.tokens().subspan(static_cast<std::size_t>(first),
                                           static_cast<std::size_t>(limit))});
    found_tails[static_cast<std::size_t>(g)] = tail.block;
    num_tokens = std::min(num_tokens, tail.num_tokens);
  }
  return num_tokens;
}

AdmissionPlan BlockManager::State::find_prefix(const Prompt& prompt,
                                               const AdmitOptions& request) const {
  const bool has_aligned = std::ranges::any_of(options.groups, [](const LayerGroup& group) {
    return group.alignment == Alignment::kAligned;
  });
  // What the decoder computes depends on the encoder, which the keys do not know.
  const bool may_share =
      options.prefix_cache && prompt.is_hashed() && has_aligned && request.num_cross_tokens == 0;
  if (!may_share) return {};
  const std::int64_t last = is_broken(Mutant::kMatchesWholePrompt) ? 0 : 1;
  const std::int64_t max_blocks = (prompt.num_tokens() - last) / options.block_size;
  AdmissionPlan plan;
  plan.num_blocks = fit_windows(find_full_prefix(prompt, max_blocks));
  plan.num_tail_tokens = find_tails(prompt, plan.num_blocks);
  return plan;
}

// A group without a window needs all blocks of the prompt; one with a window at most what a window
// and a chunk can touch, and the sinks. Hits that are evictable count as taken, but never more than
// the sequence would need alone: so kLater comes true when the others have gone.
BlockManager::State::Need BlockManager::State::need_of(int g, std::int64_t num_tokens,
                                                       const AdmitOptions& request,
                                                       const AdmissionPlan& plan) const {
  if (is_cross(g)) {
    const std::int64_t num_blocks = num_blocks_for(request.num_cross_tokens);
    return {.now = num_blocks, .alone = num_blocks};
  }
  const std::int64_t num_total = num_blocks_for(num_tokens);
  Need need{.now = num_total - plan.num_blocks, .alone = num_total};
  const std::int64_t num_cached = plan.num_cached(options.block_size);
  for (std::int64_t i = 0; i < plan.num_blocks; ++i) {
    if (!is_needed(g, num_cached, i)) continue;
    need.now += pool_of(g).device.is_evictable(found_block(g, i));
  }
  if (has_window(g)) {
    const std::int64_t chunk =
        request.max_chunk > 0 ? std::min(request.max_chunk, num_tokens) : num_tokens;
    const std::int64_t touched = std::min(window_tokens(g), num_tokens) + chunk;
    need.alone = std::min(need.alone, num_sink_blocks(g) + num_blocks_for(touched) + 1);
  }
  need.now = std::min(need.now, need.alone) + (plan.num_tail_tokens > 0 ? 1 : 0);
  return need;
}

BlockManager::State::Need BlockManager::State::need_of_pool(std::size_t p, std::int64_t num_tokens,
                                                            const AdmitOptions& request,
                                                            const AdmissionPlan& plan) const {
  Need need;
  for (int g = 0; g < num_groups(); ++g) {
    if (static_cast<std::size_t>(group(g).pool) != p) continue;
    const Need more = need_of(g, num_tokens, request, plan);
    need.now += more.now;
    need.alone += more.alone;
  }
  return need;
}

AdmitStatus BlockManager::State::admit_status(const Prompt& prompt, const AdmitOptions& request,
                                              const AdmissionPlan& plan) const {
  const std::int64_t num_tokens = prompt.num_tokens() + request.num_lookahead;
  AdmitStatus status = AdmitStatus::kNow;
  for (std::size_t p = 0; p < pools.size(); ++p) {
    const Need need = need_of_pool(p, num_tokens, request, plan);
    const BlockPool& device = pools[p].device;
    const std::int64_t watermark = is_broken(Mutant::kIgnoresWatermark) ? 0 : pools[p].watermark;
    if (device.num_usable() - need.alone < watermark) return AdmitStatus::kNever;
    if (device.num_available() - need.now < watermark) status = AdmitStatus::kLater;
  }
  return status;
}

AdmitStatus BlockManager::State::plan_admission(const Prompt& prompt, const AdmitOptions& request,
                                                AdmissionPlan& plan) const {
  require_request(prompt, request);
  plan = find_prefix(prompt, request);
  const AdmitStatus status = admit_status(prompt, request, plan);
  if (status == AdmitStatus::kNow || plan.num_tail_tokens == 0) return status;
  // A tail is pinned until it has been copied: without it there may be room.
  plan.num_tail_tokens = 0;
  return admit_status(prompt, request, plan);
}

// All hits first, so that no eviction takes them; then the copies of tails, and cross blocks.
void BlockManager::State::take_found(SequenceRecord& sequence, const AdmissionPlan& plan) {
  for (int g = 0; g < num_groups(); ++g) {
    if (is_cross(g)) continue;
    SequenceTable& table = sequence.table(g);
    for (std::int64_t i = 0; i < plan.num_blocks; ++i) {
      const BlockId block = found_block(g, i);
      const bool needed = is_needed(g, sequence.num_tokens, i);
      if (needed) pool_of(g).device.add_ref(block);
      table.blocks.push_back(needed ? block : kNullBlock);
    }
    const std::int64_t begin =
        std::min(first_needed_block(g, sequence.num_tokens), plan.num_blocks);
    table.window_begin = begin > num_sink_blocks(g) ? begin : 0;
    if (plan.num_tail_tokens > 0) {
      pin_source(g, {.block = found_tails[static_cast<std::size_t>(g)]});
    }
  }
  for (int g = 0; g < num_groups(); ++g) {
    SequenceTable& table = sequence.table(g);
    if (is_cross(g)) {
      const std::int64_t num_blocks = num_blocks_for(sequence.num_cross_tokens);
      for (std::int64_t i = 0; i < num_blocks; ++i) table.blocks.push_back(acquire(g));
    } else if (plan.num_tail_tokens > 0) {
      table.blocks.push_back(acquire(g));
      add_copy(g, {.block = found_tails[static_cast<std::size_t>(g)]},
               {.block = table.blocks.back()});
      ++counters.num_copies;
    }
  }
}

std::int64_t BlockManager::num_cached_tokens(const Prompt& prompt) const {
  state_->require_request(prompt, {});
  return state_->find_prefix(prompt, {}).num_cached(state_->options.block_size);
}

AdmitStatus BlockManager::can_admit(const Prompt& prompt, const AdmitOptions& options) const {
  AdmissionPlan plan;
  return state_->plan_admission(prompt, options, plan);
}

std::int64_t BlockManager::num_blocks_to_admit(const Prompt& prompt, const AdmitOptions& options,
                                               int pool) const {
  const State& state = *state_;
  state.require_pool(pool);
  AdmissionPlan plan;
  (void)state.plan_admission(prompt, options, plan);  // found beginning, with its tail or without
  const std::int64_t num_tokens = prompt.num_tokens() + options.num_lookahead;
  return state.need_of_pool(static_cast<std::size_t>(pool), num_tokens, options, plan).now;
}

std::optional<Admission> BlockManager::admit(const Prompt& prompt, const AdmitOptions& options) {
  State& state = *state_;
  AdmissionPlan plan;
  if (state.plan_admission(prompt, options, plan) != AdmitStatus::kNow) return std::nullopt;
  const std::size_t record = state.make_record();
  SequenceRecord& sequence = state.sequences[record];
  state.copies.reserve(plan.num_tail_tokens > 0 ? state.options.groups.size() : 0);
  for (int g = 0; g < state.num_groups(); ++g) {
    const std::int64_t num_blocks = state.is_cross(g)
                                        ? state.num_blocks_for(options.num_cross_tokens)
                                        : plan.num_blocks + (plan.num_tail_tokens > 0 ? 1 : 0);
    reserve_more(sequence.table(g).blocks, static_cast<std::size_t>(num_blocks));
  }
  // From here on nothing throws.
  state.free_records.pop_back();
  sequence.status = SequenceRecord::Status::kResident;
  sequence.prompt = prompt;
  sequence.num_tokens = plan.num_cached(state.options.block_size);
  sequence.num_cross_tokens = options.num_cross_tokens;
  sequence.cross_is_stored = false;
  sequence.shares =
      state.options.prefix_cache && prompt.is_hashed() && options.num_cross_tokens == 0;
  if (sequence.shares) {
    sequence.last_key = prompt.parent_key(plan.num_blocks);
    const std::span<const Token> tail = prompt.tokens().subspan(
        static_cast<std::size_t>(plan.num_blocks * state.options.block_size),
        static_cast<std::size_t>(plan.num_tail_tokens));
    sequence.tail.assign(tail.begin(), tail.end());
  }
  state.take_found(sequence, plan);
  ++state.counters.num_admitted;
  state.counters.num_prompt_tokens += prompt.num_tokens();
  state.counters.num_prompt_blocks += prompt.num_full_blocks();
  state.counters.num_hit_blocks += plan.num_blocks;
  state.counters.num_hit_tokens += sequence.num_tokens;
  state.changed();
  return Admission{.id = state.id_of(record), .num_cached_tokens = sequence.num_tokens};
}

}  // namespace quire
