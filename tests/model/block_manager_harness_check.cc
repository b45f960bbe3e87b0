// SPDX-License-Identifier: Apache-2.0
// The simulated cache, and everything that is compared after an operation.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/block_manager_harness.h"
#include "model/harness_expect.h"

namespace quire::test {
namespace {

std::size_t index_of(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

Content& BlockManagerHarness::memory(int pool, Side side, BlockId block, std::int64_t offset) {
  std::vector<Content>& slots = memory_[index_of(pool)][static_cast<std::size_t>(side)];
  const std::size_t slot = index_of(std::int64_t{block} * config_.options.block_size + offset);
  if (slot >= slots.size()) slots.resize(slot + 1);
  return slots[slot];
}

// What a slot holds once the copies that are decided have run.
Content BlockManagerHarness::read(int pool, Side side, BlockId block, std::int64_t offset) {
  const auto& state = BlockManagerPeek::state(manager_);
  for (const PendingCopy& copy : state.copies.waiting()) {
    const bool is_target =
        state.group(copy.group).pool == pool && copy.dst.side == side && copy.dst.block == block;
    if (is_target) return read(pool, copy.src.side, copy.src.block, offset);
  }
  for (const LateCopy& copy : late_) {
    if (copy.pool == pool && side == Side::kHost && copy.dst == block) {
      return read(pool, Side::kDevice, copy.src, offset);
    }
  }
  return memory(pool, side, block, offset);
}

void BlockManagerHarness::copy_block(int pool, PlacedBlock src, PlacedBlock dst) {
  for (std::int64_t i = 0; i < config_.options.block_size; ++i) {
    const Content content = memory(pool, src.side, src.block, i);
    memory(pool, dst.side, dst.block, i) = content;
  }
}

void BlockManagerHarness::flush_late(std::uint64_t ticket) {
  for (const LateCopy& copy : late_) {
    if (copy.ticket > ticket) continue;
    copy_block(copy.pool, {.block = copy.src}, {.block = copy.dst, .side = Side::kHost});
  }
  std::erase_if(late_, [&](const LateCopy& copy) { return copy.ticket <= ticket; });
}

// Copies run at once, except those to the host, which may be slow: they run when completed.
void BlockManagerHarness::take_copies() {
  const CopyLists lists = manager_.take_copies();
  Ticket ticket{.number = lists.ticket, .num_copies = index_of(lists.num_copies), .blocks = {}};
  std::set<std::tuple<int, Side, BlockId>> sources;
  std::set<std::tuple<int, Side, BlockId>> targets;
  std::int64_t num_copies = 0;
  const auto each = [&](auto&& f) {
    for (std::size_t g = 0; g < lists.groups.size(); ++g) {
      const GroupCopies& group = lists.groups[g];
      const int pool = config_.options.groups[g].pool;
      for (const BlockCopy& c : group.on_device) f(pool, c, Side::kDevice, Side::kDevice);
      for (const BlockCopy& c : group.to_host) f(pool, c, Side::kDevice, Side::kHost);
      for (const BlockCopy& c : group.to_device) f(pool, c, Side::kHost, Side::kDevice);
      for (const BlockCopy& c : group.on_host) f(pool, c, Side::kHost, Side::kHost);
    }
  };
  each([&](int pool, const BlockCopy& copy, Side from, Side to) {
    ++num_copies;
    sources.insert({pool, from, copy.src});
    expect(targets.insert({pool, to, copy.dst}).second, "block ", copy.dst, " is written twice");
    ticket.blocks.push_back({pool, {.block = copy.src, .side = from}});
    ticket.blocks.push_back({pool, {.block = copy.dst, .side = to}});
    if (from == Side::kHost) flush_late(lists.ticket);
  });
  expect_equal("copies in the lists", num_copies, lists.num_copies);
  for (const auto& target : targets) {
    expect(!sources.contains(target), "block ", std::get<2>(target),
           " is read and written by one list of copies");
  }
  each([&](int pool, const BlockCopy& copy, Side from, Side to) {
    if (from == Side::kDevice && to == Side::kHost) {
      late_.push_back({.ticket = lists.ticket, .pool = pool, .src = copy.src, .dst = copy.dst});
    } else {
      copy_block(pool, {.block = copy.src, .side = from}, {.block = copy.dst, .side = to});
    }
  });
  tickets_.push_back(std::move(ticket));
  naive_.take_copies();
}

void BlockManagerHarness::complete_copies() {
  if (tickets_.empty()) return;
  const std::size_t last = draw(static_cast<std::uint32_t>(tickets_.size()));
  std::size_t num_copies = 0;
  for (std::size_t i = 0; i <= last; ++i) num_copies += tickets_[i].num_copies;
  const std::uint64_t number = tickets_[last].number;
  flush_late(number);
  tickets_.erase(tickets_.begin(), tickets_.begin() + static_cast<std::ptrdiff_t>(last + 1));
  manager_.complete_copies(number);
  naive_.complete_copies(num_copies);
}

// The step stores K and V of accepted tokens, and something else where tokens will be rejected.
void BlockManagerHarness::write_slots(const Live& live, const std::vector<Content>& accepted) {
  const auto& state = BlockManagerPeek::state(manager_);
  const NaiveSequence& sequence = naive_of(live);
  for (int g = 0; g < state.num_groups(); ++g) {
    const StepSizes sizes = manager_.step_sizes(g, std::span(&live.id, 1));
    std::vector<std::int32_t> lens(1);
    std::vector<std::int32_t> begins(2);
    std::vector<std::int32_t> indices(index_of(sizes.num_blocks));
    std::vector<std::int64_t> slots(index_of(sizes.num_slots));
    manager_.write_step(g, std::span(&live.id, 1),
                        {.query_begins = {},
                         .kv_lens = lens,
                         .indices = indices,
                         .row_stride = 0,
                         .begins = begins,
                         .slots = slots});
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto block = static_cast<BlockId>(slots[i] / config_.options.block_size);
      const PoolState& pool = state.pool_of(g);
      expect(block != kNullBlock, "the null block is written");
      expect(state.num_table_refs(g, block) == 1 || state.is_cross(g), "shared block ", block,
             " is written");
      expect(!config_.options.prefix_cache || !pool.index.contains(block), "block ", block,
             " is written, but can be found");
      Content content = ++last_garbage_;
      if (state.is_cross(g)) {
        content = mix(sequence.cross, i);
        if (accepted.empty()) continue;
      } else if (i < accepted.size()) {
        content = mix(accepted[i], static_cast<Content>(g));
      }
      memory(state.group(g).pool, Side::kDevice, block, slots[i] % config_.options.block_size) =
          content;
    }
  }
}

// Both forms of the tables say the same as block_table.
void BlockManagerHarness::check_step_arrays(const std::vector<SequenceId>& ids, int group) {
  const StepSizes sizes = manager_.step_sizes(group, ids);
  const std::size_t n = ids.size();
  std::vector<std::int32_t> begins(n + 1), queries(n + 1), lens(n), padded_lens(n);
  std::vector<std::int32_t> indices(index_of(sizes.num_blocks));
  const std::int64_t stride = sizes.max_blocks + 1;
  std::vector<std::int32_t> padded(n * index_of(stride), -1);
  std::vector<std::int64_t> slots(index_of(sizes.num_slots)), padded_slots(slots.size());
  manager_.write_step(group, ids,
                      {.query_begins = queries,
                       .kv_lens = lens,
                       .indices = indices,
                       .row_stride = 0,
                       .begins = begins,
                       .slots = slots});
  manager_.write_step(group, ids,
                      {.query_begins = {},
                       .kv_lens = padded_lens,
                       .indices = padded,
                       .row_stride = stride,
                       .begins = {},
                       .slots = padded_slots});
  expect(slots == padded_slots && lens == padded_lens, "the two forms of a step differ");
  for (std::size_t s = 0; s < n; ++s) {
    const std::span<const BlockId> table = manager_.block_table(ids[s], group);
    const std::span row = std::span(padded).subspan(s * index_of(stride), index_of(stride));
    const std::span list =
        std::span(indices).subspan(index_of(begins[s]), index_of(begins[s + 1] - begins[s]));
    expect(std::ranges::equal(table, list), "indexed table differs");
    expect(std::ranges::equal(table, row.first(table.size())) && row.back() == kNullBlock,
           "padded table differs");
    expect_equal("queries", queries[s + 1] - queries[s], manager_.num_appended(ids[s]));
  }
}

void BlockManagerHarness::check_counts() {
  const BlockStats stats = manager_.stats();
  expect_equal("sequences", stats.num_sequences, live_.size());
  for (std::size_t p = 0; p < stats.pools.size(); ++p) {
    const PoolStats& pool = stats.pools[p];
    const int number = static_cast<int>(p);
    expect_equal("free blocks", pool.num_free, naive_.num_free(number));
    expect_equal("evictable blocks", pool.num_evictable, naive_.evictable(number).size());
    expect_equal("blocks in use", pool.num_in_use, naive_.num_in_use(number, false));
    expect_equal("host blocks in use", pool.num_host_in_use, naive_.num_in_use(number, true));
    expect(pool.fragmentation >= 0 && pool.fragmentation <= 1, "fragmentation is ",
           pool.fragmentation);
  }
}

// Two table entries are the same block here if and only if they are there.
void BlockManagerHarness::check_tables() {
  std::map<std::tuple<int, bool, BlockId>, int> numbers;
  std::map<int, BlockId> ids;
  number_of_.clear();
  for (const Live& live : live_) {
    const NaiveSequence& sequence = naive_of(live);
    expect_equal("tokens", manager_.num_tokens(live.id), sequence.tokens.size());
    expect_equal("appended", manager_.num_appended(live.id), sequence.num_appended);
    expect_equal("swapped", manager_.is_swapped(live.id), sequence.is_swapped);
    for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
      const std::span<const BlockId> table = manager_.block_table(live.id, static_cast<int>(g));
      const int pool = config_.options.groups[g].pool;
      expect_equal("table length", table.size(), sequence.tables[g].size());
      for (std::size_t i = 0; i < table.size(); ++i) {
        const int number = sequence.tables[g][i];
        expect((table[i] == kNullBlock) == (number == 0), "sequence ", live.id, ", group ", g,
               ", entry ", i, ": null block where it should not be, or not");
        if (number == 0) continue;
        const std::tuple key(pool, sequence.is_swapped, table[i]);
        const bool is_same = numbers.emplace(key, number).first->second == number &&
                             ids.emplace(number, table[i]).first->second == table[i];
        expect(is_same, "sequence ", live.id, ", group ", g, ", entry ", i, ": block ", table[i],
               " is shared where it should not be, or not where it should");
        if (!sequence.is_swapped) number_of_[{pool, table[i]}] = number;
      }
    }
  }
}

void BlockManagerHarness::check_contents(const Live& live) {
  const NaiveSequence& sequence = naive_of(live);
  const Side side = sequence.is_swapped ? Side::kHost : Side::kDevice;
  const std::int64_t size = config_.options.block_size;
  for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
    const LayerGroup& group = config_.options.groups[g];
    const bool is_cross = group.alignment == Alignment::kUnaligned;
    const std::span<const BlockId> table = manager_.block_table(live.id, static_cast<int>(g));
    const auto num_tokens = static_cast<std::int64_t>(sequence.tokens.size());
    const std::int64_t length =
        is_cross ? (sequence.cross_is_stored ? sequence.num_cross : 0) : num_tokens;
    for (std::int64_t i = 0; i < length; ++i) {
      if (!is_cross && !naive_.is_needed(static_cast<int>(g), num_tokens, i / size)) continue;
      const Content expected = is_cross
                                   ? mix(sequence.cross, static_cast<Content>(i))
                                   : mix(sequence.contents[index_of(i)], static_cast<Content>(g));
      const BlockId block = table[index_of(i / size)];
      expect(read(group.pool, side, block, i % size) == expected, "sequence ", live.id, ", group ",
             g, ", token ", i, ": block ", block, " does not hold its K and V");
    }
  }
}

// The same contents in the same order, and the cache really holds them.
void BlockManagerHarness::check_eviction_order() {
  const auto& state = BlockManagerPeek::state(manager_);
  for (std::size_t p = 0; p < state.pools.size(); ++p) {
    const BlockPool& device = state.pools[p].device;
    BlockId block = device.oldest_evictable();
    for (const int number : naive_.evictable(static_cast<int>(p))) {
      const NaiveBlock& expected = naive_.block(number);
      const std::int64_t size = config_.options.block_size;
      const std::int64_t last =
          expected.is_tail ? static_cast<std::int64_t>(expected.tokens.size()) - 1 : size - 1;
      const Content held = read(static_cast<int>(p), Side::kDevice, block, last);
      expect(held == mix(expected.content, static_cast<Content>(expected.group)),
             "the eviction order differs at block ", block);
      number_of_[{static_cast<int>(p), block}] = number;
      block = device.next_evictable(block);
    }
  }
}

// No block is free, and so none is reused, while a copy of it is under way.
void BlockManagerHarness::check_flights() {
  const auto& state = BlockManagerPeek::state(manager_);
  expect_equal("copies under way", state.copies.all().size(), naive_.copies().size());
  for (std::size_t i = 0; i < naive_.copies().size(); ++i) {
    const PendingCopy& copy = state.copies.all()[i];
    const int pool = state.group(copy.group).pool;
    if (copy.src.side == Side::kDevice) number_of_[{pool, copy.src.block}] = naive_.copies()[i].src;
    if (copy.dst.side == Side::kDevice) number_of_[{pool, copy.dst.block}] = naive_.copies()[i].dst;
  }
  for (const Ticket& ticket : tickets_) {
    for (const auto& [pool, placed] : ticket.blocks) {
      const PoolState& blocks = state.pools[index_of(pool)];
      const BlockPool& side = placed.side == Side::kHost ? blocks.host : blocks.device;
      expect(side.is_in_use(placed.block), "block ", placed.block,
             " is free while a copy of it runs");
    }
  }
}

void BlockManagerHarness::check_events() {
  if (!config_.with_events) return;
  std::set<std::pair<int, std::string>> known;
  for (const PoolState& pool : BlockManagerPeek::state(manager_).pools) {
    for (std::int64_t id = 1; id < pool.device.id_limit(); ++id) {
      const auto block = static_cast<BlockId>(id);
      if (!pool.index.contains(block) || pool.index.is_tail(block)) continue;
      const PrefixIndex::Key key = pool.index.key(block);
      known.insert({key.group, to_string(key.digest)});
    }
  }
  expect(sink_.num_errors == 0, "an event says what was said already");
  expect(known == sink_.stored, "events and contents differ: ", sink_.stored.size(), " and ",
         known.size());
}

void BlockManagerHarness::check() {
  manager_.validate();
  check_counts();
  check_tables();
  for (const Live& live : live_) check_contents(live);
  check_eviction_order();
  check_flights();
  check_events();
}

// Calls that must be refused, and change nothing.
void BlockManagerHarness::misuse() {
  const std::string before = manager_.dump();
  const auto expect_refused = [&](const char* what, auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::kInvalidArgument, what, ": ", error.what());
      return;
    }
    expect(false, what, " was not refused");
  };
  std::vector<SequenceId> wrong = {SequenceId{}, SequenceId{~std::uint64_t{0}}};
  if (!dead_.empty()) wrong.push_back(dead_[draw(static_cast<std::uint32_t>(dead_.size()))]);
  const SequenceId id = wrong[draw(static_cast<std::uint32_t>(wrong.size()))];
  expect_refused("free", [&] { manager_.free(id); });
  expect_refused("fork", [&] { (void)manager_.fork(id); });
  expect_refused("append", [&] { (void)manager_.append(id, 1); });
  expect_refused("commit", [&] { manager_.commit(id, {}); });
  expect_refused("swap_out", [&] { (void)manager_.swap_out(id); });
  expect_refused("swap_in", [&] { (void)manager_.swap_in(id); });
  expect_refused("truncate", [&] { (void)manager_.truncate(id, 0); });
  expect_refused("complete", [&] { manager_.complete_copies(1u << 30); });
  if (Live* live = draw_live(false)) {
    const NaiveSequence& sequence = naive_of(*live);
    const std::vector<Token> many(index_of(sequence.num_appended + 1), 9);
    expect_refused("append less than nothing", [&] { (void)manager_.append(live->id, -1); });
    expect_refused("commit too many", [&] { manager_.commit(live->id, many); });
    expect_refused("roll back too many",
                   [&] { manager_.rollback(live->id, sequence.num_appended + 1); });
    expect_refused("swap in what is there", [&] { (void)manager_.swap_in(live->id); });
    const bool in_prompt = sequence.tokens.size() < sequence.prompt.tokens.size();
    if (sequence.num_appended > 0 && in_prompt) {
      expect_refused("commit another prompt",
                     [&] { manager_.commit(live->id, std::span(many).first(1)); });
    }
    if (sequence.num_appended > 0) {
      expect_refused("fork in a step", [&] { (void)manager_.fork(live->id); });
      expect_refused("swap out in a step", [&] { (void)manager_.swap_out(live->id); });
    }
  }
  expect(manager_.dump() == before, "a refused call changed the state");
}

}  // namespace quire::test
