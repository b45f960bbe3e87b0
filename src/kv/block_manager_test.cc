// SPDX-License-Identifier: Apache-2.0
// What each call of BlockManager does, by example; tests/model/ holds it to a model.
#include "quire/block_manager.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_manager_peek.h"
#include "quire/error.h"

namespace quire {
namespace {

constexpr int kBlockSize = 4;

BlockManagerOptions options_of(std::int64_t num_blocks, std::vector<LayerGroup> groups = {{}}) {
  BlockManagerOptions options;
  options.block_size = kBlockSize;
  options.pools = {{.num_blocks = num_blocks, .num_host_blocks = 9}};
  options.groups = std::move(groups);
  return options;
}

std::vector<Token> tokens_of(std::size_t count, Token first = 0) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Prompt prompt_of(std::size_t count, Token first = 0) {
  return Prompt(tokens_of(count, first), kBlockSize);
}

// Appends and commits the next tokens.
void compute(BlockManager& manager, SequenceId id, const std::vector<Token>& tokens) {
  ASSERT_TRUE(manager.append(id, static_cast<std::int64_t>(tokens.size())));
  manager.complete_copies(manager.take_copies().ticket);
  manager.commit(id, tokens);
}

SequenceId admit_and_compute(BlockManager& manager, const Prompt& prompt) {
  const std::optional<Admission> admission = manager.admit(prompt);
  EXPECT_TRUE(admission.has_value());
  const std::span<const Token> rest =
      prompt.tokens().subspan(static_cast<std::size_t>(admission->num_cached_tokens));
  compute(manager, admission->id, std::vector<Token>(rest.begin(), rest.end()));
  return admission->id;
}

std::vector<BlockId> table_of(const BlockManager& manager, SequenceId id, int group = 0) {
  const std::span<const BlockId> table = manager.block_table(id, group);
  return {table.begin(), table.end()};
}

template <class F>
std::string message_of(F&& call, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(BlockManager, APromptSharesTheWholeBlocksOfAnEarlierOne) {
  BlockManager manager(options_of(20));
  const SequenceId first = admit_and_compute(manager, prompt_of(10));
  const std::optional<Admission> second = manager.admit(prompt_of(10));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->num_cached_tokens, 8);
  EXPECT_EQ(table_of(manager, second->id), (std::vector<BlockId>{1, 2}));
  EXPECT_EQ(table_of(manager, first), (std::vector<BlockId>{1, 2, 3}));
  EXPECT_EQ(manager.stats().num_hit_blocks, 2);
  EXPECT_EQ(manager.stats().num_prompt_blocks, 4);
}

TEST(BlockManager, TheLastTokenIsAlwaysComputed) {
  BlockManager manager(options_of(20));
  admit_and_compute(manager, prompt_of(8));
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(8)), 4);
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(9)), 8);
}

TEST(BlockManager, ABlockIsSharedOnlyOnceItIsComputed) {
  BlockManager manager(options_of(20));
  const SequenceId first = manager.admit(prompt_of(8))->id;
  ASSERT_TRUE(manager.append(first, 8));
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(9)), 0);
  manager.commit_prompt(first, 6);
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(9)), 4);
}

TEST(BlockManager, SaltAndAdapterKeepTenantsApart) {
  BlockManager manager(options_of(20));
  const std::vector<Token> tokens = tokens_of(9);
  const auto prompt = [&](std::string_view salt, std::string_view adapter) {
    return Prompt(tokens, kBlockSize, {.salt = salt, .adapter = adapter, .extra_keys = {}});
  };
  admit_and_compute(manager, prompt("a", ""));
  EXPECT_EQ(manager.num_cached_tokens(prompt("a", "")), 8);
  EXPECT_EQ(manager.num_cached_tokens(prompt("b", "")), 0);
  EXPECT_EQ(manager.num_cached_tokens(prompt("", "a")), 0);
  EXPECT_EQ(manager.num_cached_tokens(prompt("", "")), 0);
  EXPECT_EQ(manager.num_cached_tokens(Prompt::unhashed(tokens, kBlockSize)), 0);
}

TEST(BlockManager, EqualBlocksComputedSideBySideAreKeptOnceWhenUnused) {
  BlockManager manager(options_of(20));
  const SequenceId first = manager.admit(prompt_of(5))->id;
  const SequenceId second = manager.admit(prompt_of(5))->id;
  compute(manager, first, tokens_of(5));
  compute(manager, second, tokens_of(5));
  EXPECT_NE(table_of(manager, first)[0], table_of(manager, second)[0]);
  EXPECT_EQ(manager.stats().num_duplicates, 1);
  manager.free(first);
  EXPECT_EQ(manager.stats().pools[0].num_evictable, 0);
  manager.free(second);
  EXPECT_EQ(manager.stats().pools[0].num_evictable, 1);
  manager.validate();
}

TEST(BlockManager, EvictsChildrenBeforeParents) {
  BlockManager manager(options_of(7));  // 6 usable
  manager.free(admit_and_compute(manager, prompt_of(12)));
  ASSERT_EQ(manager.stats().pools[0].num_evictable, 3);
  const SequenceId other = manager.admit(prompt_of(12, 100))->id;
  compute(manager, other, tokens_of(12, 100));
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(13)), 12);
  compute(manager, other, {1});
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(13)), 8);
  compute(manager, other, {2, 3, 4, 5});
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(13)), 4);
  EXPECT_EQ(manager.stats().num_evictions, 2);
}

TEST(BlockManager, SaysNowLaterOrNever) {
  BlockManagerOptions options = options_of(11);  // 10 usable
  options.pools[0].watermark_blocks = 2;
  BlockManager manager(options);
  EXPECT_EQ(manager.can_admit(prompt_of(32)), AdmitStatus::kNow);
  EXPECT_EQ(manager.can_admit(prompt_of(33)), AdmitStatus::kNever);
  EXPECT_EQ(manager.can_admit(prompt_of(32), {.num_lookahead = 1}), AdmitStatus::kNever);
  const SequenceId first = admit_and_compute(manager, prompt_of(20));
  EXPECT_EQ(manager.can_admit(prompt_of(12, 100)), AdmitStatus::kNow);
  EXPECT_EQ(manager.can_admit(prompt_of(13, 100)), AdmitStatus::kLater);
  EXPECT_EQ(manager.can_admit(prompt_of(32)), AdmitStatus::kNow);  // five blocks are there already
  EXPECT_FALSE(manager.admit(prompt_of(13, 100)).has_value());
  EXPECT_TRUE(manager.can_append(first, 20));  // the watermark is for those who run
  EXPECT_FALSE(manager.can_append(first, 21));
  EXPECT_EQ(manager.num_blocks_to_append(first, 21, 0), 6);
}

TEST(BlockManager, LookAheadIsRolledBack) {
  BlockManager manager(options_of(20));
  const SequenceId id = admit_and_compute(manager, prompt_of(7));
  ASSERT_TRUE(manager.append(id, 6));
  EXPECT_EQ(table_of(manager, id).size(), 4u);
  manager.commit(id, std::vector<Token>{50, 51});
  manager.rollback(id, 4);
  EXPECT_EQ(manager.num_tokens(id), 9);
  EXPECT_EQ(manager.num_appended(id), 0);
  EXPECT_EQ(table_of(manager, id).size(), 3u);
  EXPECT_EQ(manager.stats().num_rejected, 4);
}

TEST(BlockManager, AForkCopiesTheSharedBlockThatItWrites) {
  BlockManager manager(options_of(20));
  const SequenceId parent = admit_and_compute(manager, prompt_of(6));
  const SequenceId child = manager.fork(parent);
  EXPECT_EQ(table_of(manager, child), table_of(manager, parent));
  ASSERT_TRUE(manager.append(child, 1));
  ASSERT_TRUE(manager.append(parent, 1));  // the block is its own again
  EXPECT_EQ(table_of(manager, parent), (std::vector<BlockId>{1, 2}));
  EXPECT_EQ(table_of(manager, child), (std::vector<BlockId>{1, 3}));
  const CopyLists copies = manager.take_copies();
  ASSERT_EQ(copies.num_copies, 1);
  ASSERT_EQ(copies.groups[0].on_device.size(), 1u);
  EXPECT_EQ(copies.groups[0].on_device[0].src, 2);
  EXPECT_EQ(copies.groups[0].on_device[0].dst, 3);
  manager.free(parent);
  EXPECT_EQ(manager.stats().pools[0].num_in_use, 3);  // block 2 waits for its copy
  manager.complete_copies(copies.ticket);
  EXPECT_EQ(manager.stats().pools[0].num_in_use, 2);
}

TEST(BlockManager, CopiesThatWaitNeverReadWhatTheyWrite) {
  BlockManager manager(options_of(20));
  const SequenceId first = admit_and_compute(manager, prompt_of(6));
  const SequenceId second = manager.fork(first);
  ASSERT_TRUE(manager.append(second, 1));  // 2 -> 3
  manager.rollback(second, 1);
  const SequenceId third = manager.fork(second);
  ASSERT_TRUE(manager.append(third, 1));  // from 2 again, since 3 is not filled yet
  const CopyLists copies = manager.take_copies();
  ASSERT_EQ(copies.groups[0].on_device.size(), 2u);
  EXPECT_EQ(copies.groups[0].on_device[0].src, 2);
  EXPECT_EQ(copies.groups[0].on_device[1].src, 2);
}

TEST(BlockManager, AWindowReleasesWhatItHasPassed) {
  BlockManager manager(options_of(20, {{.mask = {.window_left = 5}, .num_sink_tokens = 3}}));
  const SequenceId id = admit_and_compute(manager, prompt_of(13));
  EXPECT_EQ(table_of(manager, id), (std::vector<BlockId>{1, 0, 3, 4}));
  compute(manager, id, {50, 51, 52, 53});
  EXPECT_EQ(table_of(manager, id), (std::vector<BlockId>{1, 0, 0, 4, 5}));
  EXPECT_EQ(manager.truncate(id, 14), 0);  // what the window had passed cannot come back
}

TEST(BlockManager, WindowedGroupsNeedOnlyTheirWindowToShare) {
  BlockManager manager(options_of(40, {{}, {.mask = {.window_left = 3}}}));
  const SequenceId first = admit_and_compute(manager, prompt_of(21));
  const std::optional<Admission> second = manager.admit(prompt_of(21));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->num_cached_tokens, 20);
  EXPECT_EQ(table_of(manager, second->id, 0).size(), 5u);
  const std::vector<BlockId> windowed = table_of(manager, second->id, 1);
  EXPECT_EQ(windowed, (std::vector<BlockId>{0, 0, 0, 0, table_of(manager, first, 1)[4]}));
}

TEST(BlockManager, CrossAttentionTablesNeverGrow) {
  BlockManager manager(options_of(20, {{}, {.alignment = Alignment::kUnaligned}}));
  const SequenceId id = manager.admit(prompt_of(3), {.num_cross_tokens = 6})->id;
  ASSERT_TRUE(manager.append(id, 3));
  EXPECT_EQ(manager.step_sizes(1, std::span(&id, 1)).num_slots, 6);
  manager.commit_prompt(id, 3);
  compute(manager, id, {7, 8, 9});
  EXPECT_EQ(table_of(manager, id, 1).size(), 2u);
  EXPECT_EQ(manager.step_sizes(1, std::span(&id, 1)).num_slots, 0);
  EXPECT_EQ(table_of(manager, manager.fork(id), 1), table_of(manager, id, 1));
}

TEST(BlockManager, PartlyFilledBlocksAreSharedByCopy) {
  BlockManagerOptions options = options_of(20);
  options.share_tails = true;
  BlockManager manager(options);
  manager.free(admit_and_compute(manager, prompt_of(7)));
  std::vector<Token> tokens = tokens_of(6);
  tokens.push_back(99);
  tokens.push_back(99);
  const std::optional<Admission> admission = manager.admit(Prompt(tokens, kBlockSize));
  ASSERT_TRUE(admission);
  EXPECT_EQ(admission->num_cached_tokens, 6);
  const CopyLists copies = manager.take_copies();
  ASSERT_EQ(copies.groups[0].on_device.size(), 1u);
  EXPECT_EQ(copies.groups[0].on_device[0].dst, table_of(manager, admission->id)[1]);
  manager.complete_copies(copies.ticket);
  manager.validate();
}

TEST(BlockManager, SwapsOutAndIn) {
  BlockManager manager(options_of(8));  // 7 usable
  const SequenceId id = admit_and_compute(manager, prompt_of(10));
  ASSERT_TRUE(manager.swap_out(id));
  EXPECT_TRUE(manager.is_swapped(id));
  const CopyLists out = manager.take_copies();
  EXPECT_EQ(out.groups[0].to_host.size(), 3u);
  EXPECT_EQ(manager.stats().pools[0].num_in_use, 3);  // until the copies have run
  manager.complete_copies(out.ticket);
  EXPECT_EQ(manager.stats().pools[0].num_in_use, 0);
  EXPECT_EQ(manager.stats().pools[0].num_evictable, 2);
  admit_and_compute(manager, prompt_of(18, 100));  // evicts one of them
  EXPECT_EQ(manager.can_swap_in(id), AdmitStatus::kLater);
  EXPECT_FALSE(manager.swap_in(id));
  ASSERT_TRUE(manager.resize(0, 12));
  ASSERT_TRUE(manager.swap_in(id));
  EXPECT_EQ(manager.stats().num_swap_hits, 2);
  const CopyLists in = manager.take_copies();
  EXPECT_EQ(in.groups[0].to_device.size(), 1u);
  manager.complete_copies(in.ticket);
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(9)), 8);
  EXPECT_EQ(manager.stats().pools[0].num_host_in_use, 0);
  compute(manager, id, {20});
  manager.validate();
}

// What admit, swap_in and append would take, and what there is to take it from.
TEST(BlockManager, CountsTheBlocksThatAreMissing) {
  BlockManager manager(options_of(8));  // 7 usable
  const SequenceId id = admit_and_compute(manager, prompt_of(10));
  EXPECT_EQ(manager.num_available_blocks(0), 4);
  EXPECT_EQ(manager.num_blocks_to_admit(prompt_of(18, 100), {.num_lookahead = 3}, 0), 6);
  EXPECT_EQ(manager.num_blocks_to_admit(prompt_of(18), {}, 0), 3);  // two are shared
  EXPECT_EQ(manager.can_admit(prompt_of(18, 100)), AdmitStatus::kLater);
  ASSERT_TRUE(manager.swap_out(id));
  manager.complete_copies(manager.take_copies().ticket);
  EXPECT_EQ(manager.num_available_blocks(0), 7);
  EXPECT_EQ(manager.num_blocks_to_admit(prompt_of(18), {}, 0), 5);  // two are found, but not held
  EXPECT_EQ(manager.num_blocks_to_swap_in(id, 0, 0), 3);
  EXPECT_EQ(manager.num_blocks_to_swap_in(id, 3, 0), 4);  // the third has room for two
  EXPECT_EQ(manager.can_swap_in(id, 18), AdmitStatus::kNow);
  EXPECT_EQ(manager.can_swap_in(id, 19), AdmitStatus::kLater);
  EXPECT_THROW((void)manager.can_swap_in(id, -1), Error);
  EXPECT_THROW((void)manager.num_available_blocks(1), Error);
  EXPECT_THROW((void)manager.num_blocks_to_admit(prompt_of(18), {}, -1), Error);
  ASSERT_TRUE(manager.swap_in(id));
  EXPECT_TRUE(manager.append(id, 18));
  EXPECT_EQ(manager.num_available_blocks(0), 0);
}

TEST(BlockManager, AResetForgetsWhatLiveSequencesHoldToo) {
  BlockManager manager(options_of(20));
  const SequenceId id = admit_and_compute(manager, prompt_of(9));
  manager.reset_prefix_cache();
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(9)), 0);
  compute(manager, id, {20, 21, 22, 23});
  manager.free(id);
  EXPECT_EQ(manager.num_cached_tokens(prompt_of(9)), 0);
  EXPECT_EQ(manager.stats().pools[0].num_evictable, 0);
}

TEST(BlockManager, ShrinkingWaitsForBlocksInUse) {
  BlockManager manager(options_of(20));
  const SequenceId id = admit_and_compute(manager, prompt_of(40));
  EXPECT_FALSE(manager.resize(0, 6));
  EXPECT_EQ(manager.can_admit(prompt_of(4, 100)), AdmitStatus::kLater);
  manager.free(id);
  EXPECT_EQ(manager.stats().pools[0].num_free, 5);
  EXPECT_EQ(manager.can_admit(prompt_of(20, 100)), AdmitStatus::kNow);
  EXPECT_EQ(manager.can_admit(prompt_of(21, 100)), AdmitStatus::kNever);
  manager.validate();
}

TEST(BlockManager, ReservedRecordsAreUsedFromTheLowestOn) {
  BlockManager manager(options_of(20));
  const SequenceId first = manager.admit(prompt_of(3))->id;
  manager.free(first);
  manager.reserve(1000, 16);
  manager.reserve(10, 16);
  manager.validate();
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(to_string(manager.admit(prompt_of(1))->id));
  EXPECT_EQ(names, (std::vector<std::string>{"0.2", "1.1", "2.1", "3.1"}));
}

TEST(BlockManager, ReportsFragmentation) {
  BlockManager manager(options_of(20));
  const SequenceId id = admit_and_compute(manager, prompt_of(5));
  manager.fork(id);  // the shared last block counts once
  EXPECT_DOUBLE_EQ(manager.stats().pools[0].fragmentation, 3.0 / 8.0);
  EXPECT_DOUBLE_EQ(manager.stats().pools[0].occupancy(), 2.0 / 19.0);
}

TEST(BlockManager, NamesTheSequenceAndTheValueThatAreWrong) {
  BlockManager manager(options_of(20));
  BlockManager other(options_of(20));
  const SequenceId foreign = other.admit(prompt_of(3))->id;
  const SequenceId id = manager.admit(prompt_of(6))->id;
  EXPECT_EQ(message_of([&] { manager.free(foreign); }),
            "sequence 0.1 is not one of this block manager");
  EXPECT_EQ(message_of([&] { manager.free(SequenceId{}); }),
            "sequence 0.0 is not one of this block manager");
  EXPECT_EQ(message_of([&] { manager.commit(id, tokens_of(1)); }),
            "sequence 0.1 has appended 0 tokens, cannot commit 1");
  ASSERT_TRUE(manager.append(id, 3));
  EXPECT_EQ(message_of([&] {
              manager.commit(id, std::vector<Token>{0, 7});
            }),
            "sequence 0.1, token 1: the prompt has 1, committed is 7");
  EXPECT_EQ(message_of([&] { manager.fork(id); }),
            "sequence 0.1 cannot fork with 3 tokens appended and not committed");
  EXPECT_EQ(message_of([&] { manager.rollback(id, 4); }),
            "sequence 0.1 can roll back between 0 and 3 tokens, not 4");
  EXPECT_EQ(message_of([&] { (void)manager.append(id, std::int64_t{1} << 40); }),
            "sequence 0.1 can append between 0 and 2147483644 tokens, not 1099511627776");
  EXPECT_EQ(message_of([&] { (void)manager.block_table(id, 1); }),
            "group 1 is not one of the 1 groups");
  const std::vector<SequenceId> twice = {id, id};
  std::vector<std::int32_t> lens(2), indices(8);
  std::vector<std::int64_t> slots(6);
  const StepArrays arrays{.query_begins = {},
                          .kv_lens = lens,
                          .indices = indices,
                          .row_stride = 4,
                          .begins = {},
                          .slots = slots};
  EXPECT_EQ(message_of([&] { manager.write_step(0, twice, arrays); }),
            "sequence 0.1 is in the batch twice");
  manager.free(id);
  EXPECT_EQ(message_of([&] { manager.free(id); }), "sequence 0.1 has been freed");
  EXPECT_EQ(message_of([&] { (void)manager.admit(Prompt(tokens_of(3), 2)); }),
            "the prompt was made for blocks of 2 tokens, the cache has blocks of 4");
  EXPECT_EQ(message_of([&] { manager.complete_copies(9); }),
            "ticket 9 of copies was never handed out, the last is 0");
}

TEST(BlockManager, ValidateNamesWhatIsCorrupt) {
  const auto corrupt = [](auto&& damage) {
    BlockManagerOptions options = options_of(20);
    options.validate_interval = 0;
    BlockManager manager(options);
    admit_and_compute(manager, prompt_of(10));
    damage(BlockManagerPeek::state(manager));
    return message_of([&] { manager.validate(); }, ErrorCode::kInternal);
  };
  EXPECT_EQ(corrupt([](auto& state) { state.sequences[0].tables[0].blocks[1] = 9; }),
            "sequence 0.1, group 0, entry 1: block 9 is not in use");
  EXPECT_EQ(corrupt([](auto& state) { state.sequences[0].tables[0].blocks[2] = 1; }),
            "sequence 0.1, group 0, entry 2: block 1 is still to be written, but can be found");
  EXPECT_EQ(corrupt([](auto& state) { state.pools[0].device.add_ref(2); }),
            "pool 0, device block 2 counts 2 references, has 1 table entries and 0 copies");
  EXPECT_EQ(corrupt([](auto& state) { state.sequences[0].num_tokens = 13; }),
            "sequence 0.1, group 0 has 3 entries, needs 4");
  EXPECT_EQ(corrupt([](auto& state) { state.pools[0].index.erase(2); }),
            "sequence 0.1, group 0, entry 1: block 2 cannot be found");
}

}  // namespace
}  // namespace quire
