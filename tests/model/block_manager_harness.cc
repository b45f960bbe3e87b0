// SPDX-License-Identifier: Apache-2.0
#include "model/block_manager_harness.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/harness_expect.h"

namespace quire::test {
namespace {

constexpr std::size_t kMaxLive = 6;

BlockManagerOptions with_event_sink(const HarnessConfig& config, KvEventSink* sink) {
  BlockManagerOptions options = config.options;
  if (config.with_events) options.events = sink;
  options.validate_interval = 0;  // the harness validates after every operation
  return options;
}

std::string name_of(int number) {
  return number == 0 ? std::string() : std::to_string(number);
}

}  // namespace

void RecordingSink::on_event(const KvEvent& event) noexcept {
  const std::pair<int, std::string> key(event.group, to_string(event.digest));
  if (event.kind == KvEvent::Kind::kCleared) stored.clear();
  if (event.kind == KvEvent::Kind::kStored && !stored.insert(key).second) ++num_errors;
  if (event.kind == KvEvent::Kind::kRemoved && stored.erase(key) == 0) ++num_errors;
}

std::vector<HarnessConfig> harness_configs() {
  const LayerGroup full;
  const LayerGroup window{.mask = {.window_left = 4}};
  const LayerGroup sinks{.pool = 1, .mask = {.window_left = 3}, .num_sink_tokens = 2};
  const LayerGroup chunked{.mask = {.chunk = 6}};
  const LayerGroup self_only{.mask = {.window_left = 0}};
  const LayerGroup cross{.alignment = Alignment::kUnaligned};
  const BlockPoolOptions small{.num_blocks = 13, .num_host_blocks = 9, .watermark_blocks = 1};
  const BlockPoolOptions large{.num_blocks = 25, .num_host_blocks = 16, .watermark_blocks = 2};
  return {
      {.name = "full", .options = {.block_size = 2, .pools = {small}, .groups = {full}}},
      {.name = "full and window, one pool, tails, 4-bit digest",
       .options = {.block_size = 3,
                   .pools = {large},
                   .groups = {full, window},
                   .share_tails = true,
                   .compare_tokens = true,
                   .digest_bits = 4}},
      {.name = "full and sinks, two pools",
       .options = {.block_size = 1, .pools = {large, small}, .groups = {full, sinks}}},
      {.name = "chunks, tails",
       .options = {.block_size = 4, .pools = {small}, .groups = {chunked}, .share_tails = true},
       .with_events = true},
      {.name = "cross", .options = {.block_size = 2, .pools = {large}, .groups = {full, cross}}},
      {.name = "no prefix cache",
       .options =
           {.block_size = 2, .pools = {large}, .groups = {full, window}, .prefix_cache = false}},
      {.name = "full, tails, 4-bit digest, events",
       .options = {.block_size = 3,
                   .pools = {small},
                   .groups = {full},
                   .share_tails = true,
                   .compare_tokens = true,
                   .digest_bits = 4},
       .with_events = true},
      {.name = "two full groups, one pool, events",
       .options = {.block_size = 2, .pools = {large}, .groups = {full, full}},
       .with_events = true},
      {.name = "a window of one token",
       .options = {.block_size = 2, .pools = {small}, .groups = {self_only}}},
  };
}

BlockManagerHarness::BlockManagerHarness(const HarnessConfig& config)
    : config_(config),
      manager_(with_event_sink(config, &sink_)),
      naive_(config.options),
      memory_(config.options.pools.size()) {}

std::uint32_t BlockManagerHarness::draw(std::uint32_t limit) {
  drawn_ = mix(drawn_, 1);
  return static_cast<std::uint32_t>(drawn_ % limit);
}

// Prompts begin like one of a few, so that beginnings are shared, and part somewhere.
NaivePrompt BlockManagerHarness::draw_prompt() {
  NaivePrompt prompt;
  const std::uint32_t family = draw(2);
  const std::uint32_t num_tokens = 1 + draw(14);
  const std::uint32_t num_common = draw(num_tokens + 6);
  for (std::uint32_t i = 0; i < num_tokens; ++i) {
    const std::uint32_t common = (i * i + family * (i + 1)) % 3;
    prompt.tokens.push_back(static_cast<Token>(i < num_common ? common : draw(2)));
  }
  prompt.salt = draw(8) == 0;
  prompt.adapter = draw(8) == 0;
  if (draw(6) == 0) {
    const std::uint32_t first = draw(num_tokens);
    prompt.item = NaiveItem{.first = first,
                            .count = 1 + static_cast<std::int64_t>(draw(num_tokens - first)),
                            .id = 1 + static_cast<int>(draw(2))};
  }
  return prompt;
}

Prompt BlockManagerHarness::make_prompt(const NaivePrompt& prompt, bool hashed) const {
  if (!hashed) return Prompt::unhashed(prompt.tokens, config_.options.block_size);
  const std::string salt = name_of(prompt.salt);
  const std::string adapter = name_of(prompt.adapter);
  PrefixScope scope{.salt = salt, .adapter = adapter};
  const std::string item = prompt.item ? name_of(prompt.item->id) : "";
  ExtraKey key;
  if (prompt.item) {
    key = {.first_token = prompt.item->first, .num_tokens = prompt.item->count, .bytes = item};
    scope.extra_keys = std::span(&key, 1);
  }
  return Prompt(prompt.tokens, config_.options.block_size, scope);
}

BlockManagerHarness::Live* BlockManagerHarness::draw_live(bool swapped) {
  std::vector<Live*> candidates;
  for (Live& live : live_) {
    if (naive_of(live).is_swapped == swapped) candidates.push_back(&live);
  }
  if (candidates.empty()) return nullptr;
  return candidates[draw(static_cast<std::uint32_t>(candidates.size()))];
}

std::size_t BlockManagerHarness::free_naive() {
  const auto at = std::ranges::find(naive_used_, false);
  const auto index = static_cast<std::size_t>(at - naive_used_.begin());
  if (index == naive_used_.size()) {
    naive_used_.push_back(false);
    naive_sequences_.emplace_back();
  }
  naive_used_[index] = true;
  return index;
}

void BlockManagerHarness::admit(bool fill) {
  if (live_.size() >= kMaxLive) return;
  const NaivePrompt naive_prompt = draw_prompt();
  const bool hashed = draw(8) != 0;
  bool has_cross = false;
  for (const LayerGroup& group : config_.options.groups) {
    has_cross |= group.alignment == Alignment::kUnaligned;
  }
  AdmitOptions request;
  request.num_lookahead = draw(3);
  request.max_chunk = draw(5);
  if (has_cross && draw(3) != 0) request.num_cross_tokens = 1 + draw(5);

  const Prompt prompt = make_prompt(naive_prompt, hashed);
  NaiveBlocks::Match match = naive_.match(naive_prompt, {}, hashed);
  const std::int64_t num_cached =
      match.num_blocks * config_.options.block_size + match.num_tail_tokens;
  expect_equal("cached tokens found", manager_.num_cached_tokens(prompt), num_cached);
  match = naive_.match(naive_prompt, request, hashed);
  const AdmitStatus expected = naive_.status(naive_prompt, request, match);
  expect_equal("admission status", static_cast<int>(manager_.can_admit(prompt, request)),
               static_cast<int>(expected));
  const std::optional<Admission> admission = manager_.admit(prompt, request);
  expect_equal("admitted", admission.has_value(), expected == AdmitStatus::kNow);
  if (!admission) return;
  Live live{.id = admission->id, .naive = free_naive()};
  naive_.admit(naive_prompt, request, match, hashed, naive_of(live));
  naive_of(live).cross = mix(77, static_cast<Content>(num_operations_));
  expect_equal("cached tokens taken", admission->num_cached_tokens,
               static_cast<std::int64_t>(naive_of(live).tokens.size()));
  expect(admission->num_cached_tokens < prompt.num_tokens(), "nothing is left to compute");
  live_.push_back(live);
  if (!fill) return;
  // What can_admit has promised: all of it fits, chunk by chunk, if nobody else allocates.
  for (;;) {
    NaiveSequence& sequence = naive_of(live);
    const std::int64_t left =
        prompt.num_tokens() - static_cast<std::int64_t>(sequence.tokens.size());
    if (left == 0) break;
    const std::int64_t chunk = request.max_chunk > 0 ? std::min(left, request.max_chunk) : left;
    expect(manager_.append(live.id, chunk), "admitted, but a chunk does not fit");
    naive_.append(sequence, chunk);
    run_step(live_.back(), chunk);
    check();
  }
}

void BlockManagerHarness::append() {
  Live* live = draw_live(false);
  if (live == nullptr) return;
  const std::int64_t num_tokens = draw(8);
  const bool expected = naive_.can_append(naive_of(*live), num_tokens);
  expect_equal("can append", manager_.can_append(live->id, num_tokens), expected);
  const std::string before = expected ? std::string() : manager_.dump();
  expect_equal("append", manager_.append(live->id, num_tokens), expected);
  if (expected) {
    naive_.append(naive_of(*live), num_tokens);
  } else {
    expect(manager_.dump() == before, "a refused append changed the state");
  }
}

// Runs a step for one sequence: copies, K and V of all appended tokens, then accepts the first
// ones.
void BlockManagerHarness::run_step(Live& live, std::int64_t num_accepted) {
  take_copies();
  NaiveSequence& sequence = naive_of(live);
  std::vector<Token> tokens;
  std::vector<Content> contents;
  Content before = sequence.last();
  for (std::int64_t i = 0; i < num_accepted; ++i) {
    const std::size_t position = sequence.tokens.size() + static_cast<std::size_t>(i);
    const bool in_prompt = position < sequence.prompt.tokens.size();
    tokens.push_back(in_prompt ? sequence.prompt.tokens[position] : static_cast<Token>(draw(2)));
    before = sequence.prompt.next(before, static_cast<std::int64_t>(position), tokens.back());
    contents.push_back(before);
  }
  for (int g = 0; g < static_cast<int>(config_.options.groups.size()); ++g) {
    check_step_arrays({live.id}, g);
  }
  write_slots(live, contents);
  const bool by_prompt =
      sequence.tokens.size() + tokens.size() <= sequence.prompt.tokens.size() && draw(2) == 0;
  if (by_prompt) {
    manager_.commit_prompt(live.id, num_accepted);
  } else {
    manager_.commit(live.id, tokens);
  }
  naive_.commit(sequence, tokens);
}

void BlockManagerHarness::commit_some() {
  Live* live = draw_live(false);
  if (live == nullptr) return;
  const auto limit = static_cast<std::uint32_t>(naive_of(*live).num_appended);
  run_step(*live, limit == 0 ? 0 : 1 + static_cast<std::int64_t>(draw(limit)));
}

void BlockManagerHarness::rollback() {
  Live* live = draw_live(false);
  if (live == nullptr) return;
  const std::int64_t num_tokens =
      draw(static_cast<std::uint32_t>(naive_of(*live).num_appended) + 1);
  manager_.rollback(live->id, num_tokens);
  naive_.rollback(naive_of(*live), num_tokens);
}

void BlockManagerHarness::fork() {
  Live* live = draw_live(false);
  if (live == nullptr || live_.size() >= kMaxLive || naive_of(*live).num_appended > 0) return;
  const std::size_t parent = live->naive;
  const Live child{.id = manager_.fork(live->id), .naive = free_naive()};
  naive_.fork(naive_sequences_[parent], naive_of(child));
  live_.push_back(child);
}

void BlockManagerHarness::free_one() {
  if (live_.empty()) return;
  const std::size_t index = draw(static_cast<std::uint32_t>(live_.size()));
  const Live live = live_[index];
  manager_.free(live.id);
  naive_.free(naive_of(live));
  naive_used_[live.naive] = false;
  dead_.push_back(live.id);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
}

void BlockManagerHarness::truncate() {
  Live* live = draw_live(false);
  if (live == nullptr) return;
  const std::int64_t num_tokens =
      draw(static_cast<std::uint32_t>(naive_of(*live).tokens.size()) + 2);
  const std::int64_t kept = manager_.truncate(live->id, num_tokens);
  expect_equal("tokens kept", kept, naive_.truncate(naive_of(*live), num_tokens));
}

void BlockManagerHarness::swap_out() {
  Live* live = draw_live(false);
  if (live == nullptr || naive_of(*live).num_appended > 0) return;
  const bool expected = naive_.can_swap_out(naive_of(*live));
  expect_equal("can swap out", manager_.can_swap_out(live->id), expected);
  expect_equal("swap out", manager_.swap_out(live->id), expected);
  if (expected) naive_.swap_out(naive_of(*live));
}

void BlockManagerHarness::swap_in() {
  Live* live = draw_live(true);
  if (live == nullptr) return;
  const AdmitStatus expected = naive_.swap_in_status(naive_of(*live));
  expect_equal("can swap in", static_cast<int>(manager_.can_swap_in(live->id)),
               static_cast<int>(expected));
  expect_equal("swap in", manager_.swap_in(live->id), expected == AdmitStatus::kNow);
  if (expected == AdmitStatus::kNow) naive_.swap_in(naive_of(*live));
}

void BlockManagerHarness::reset() {
  manager_.reset_prefix_cache();
  naive_.reset(naive_sequences_);
}

// Ids matter here: which blocks lie beyond the new end is asked of the manager.
void BlockManagerHarness::resize() {
  const int pool = static_cast<int>(draw(static_cast<std::uint32_t>(config_.options.pools.size())));
  const BlockPool& device =
      BlockManagerPeek::state(manager_).pools[static_cast<std::size_t>(pool)].device;
  const std::int64_t num_blocks = 8 + draw(20);
  bool must_wait = false;
  std::vector<BlockId> order;
  for (std::int64_t id = num_blocks; id < device.id_limit(); ++id) {
    must_wait |= device.is_in_use(static_cast<BlockId>(id));
  }
  for (BlockId id = device.oldest_evictable(); id != kNullBlock; id = device.next_evictable(id)) {
    order.push_back(id);
  }
  for (auto& [key, number] : number_of_) {
    if (key.first == pool) naive_.block(number).is_beyond = key.second >= num_blocks;
  }
  expect_equal("resized at once", manager_.resize(pool, num_blocks), !must_wait);
  if (must_wait) {
    naive_.reset(naive_sequences_);
  } else {
    std::size_t num_evicted = order.size();
    while (num_evicted > 0 && order[num_evicted - 1] < num_blocks) --num_evicted;
    for (std::size_t i = 0; i < num_evicted; ++i) naive_.evict_oldest(pool);
  }
  naive_.set_size(pool, num_blocks);
}

void BlockManagerHarness::step_batch() {
  std::vector<Live*> batch;
  std::vector<SequenceId> ids;
  for (Live& live : live_) {
    if (naive_of(live).is_swapped || draw(4) == 0) continue;
    const std::int64_t num_tokens = 1 + draw(2);
    const bool expected = naive_.can_append(naive_of(live), num_tokens);
    expect_equal("append in a batch", manager_.append(live.id, num_tokens), expected);
    if (!expected) continue;
    naive_.append(naive_of(live), num_tokens);
    batch.push_back(&live);
    ids.push_back(live.id);
  }
  for (int g = 0; g < static_cast<int>(config_.options.groups.size()); ++g)
    check_step_arrays(ids, g);
  for (Live* live : batch) run_step(*live, naive_of(*live).num_appended);
}

// Everything ends: all blocks come back, and what fits at all fits now.
void BlockManagerHarness::drain() {
  while (!live_.empty()) free_one();
  take_copies();
  while (!tickets_.empty()) complete_copies();
  const NaivePrompt prompt = draw_prompt();
  const AdmitStatus status = manager_.can_admit(make_prompt(prompt, true));
  expect(status != AdmitStatus::kLater, "alone, and still told to wait");
  for (const PoolStats& pool : manager_.stats().pools) {
    expect_equal("blocks in use after everything ended", pool.num_in_use, 0);
    expect_equal("blocks after everything ended", pool.num_free + pool.num_evictable,
                 pool.num_usable);
    expect(config_.options.prefix_cache || pool.num_evictable == 0, "kept without prefix cache");
  }
}

void BlockManagerHarness::run(std::uint32_t operation) {
  using Method = void (BlockManagerHarness::*)();
  struct Choice {
    const char* name;
    int weight;
    Method method;
  };
  static constexpr Choice kChoices[] = {
      {"append", 14, &BlockManagerHarness::append},
      {"commit", 18, &BlockManagerHarness::commit_some},
      {"rollback", 5, &BlockManagerHarness::rollback},
      {"fork", 7, &BlockManagerHarness::fork},
      {"free", 12, &BlockManagerHarness::free_one},
      {"truncate", 4, &BlockManagerHarness::truncate},
      {"swap_out", 6, &BlockManagerHarness::swap_out},
      {"swap_in", 7, &BlockManagerHarness::swap_in},
      {"take_copies", 4, &BlockManagerHarness::take_copies},
      {"complete_copies", 6, &BlockManagerHarness::complete_copies},
      {"reset", 1, &BlockManagerHarness::reset},
      {"resize", 1, &BlockManagerHarness::resize},
      {"misuse", 3, &BlockManagerHarness::misuse},
      {"step", 14, &BlockManagerHarness::step_batch},
      {"drain", 1, &BlockManagerHarness::drain},
  };
  drawn_ = operation;
  ++num_operations_;
  if (draw(5) == 0) {
    const bool fill = draw(2) == 0;
    history_.push_back(fill ? "admit and fill" : "admit");
    admit(fill);
  } else {
    int total = 0;
    for (const Choice& choice : kChoices) total += choice.weight;
    int left = static_cast<int>(draw(static_cast<std::uint32_t>(total)));
    const Choice* choice = kChoices;
    while (left >= choice->weight) left -= (choice++)->weight;
    history_.push_back(choice->name);
    (this->*choice->method)();
  }
  check();
}

std::string BlockManagerHarness::history() const {
  std::string text = config_.name;
  text += ":";
  const std::size_t first = history_.size() > 200 ? history_.size() - 200 : 0;
  for (std::size_t i = first; i < history_.size(); ++i) text += std::string(" ") + history_[i];
  return text;
}

}  // namespace quire::test
