// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

std::vector<BlockId> eviction_order(const BlockPool& pool) {
  std::vector<BlockId> order;
  for (BlockId id = pool.oldest_evictable(); id != kNullBlock; id = pool.next_evictable(id)) {
    order.push_back(id);
  }
  return order;
}

std::vector<BlockId> allocate(BlockPool& pool, int count) {
  std::vector<BlockId> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(pool.allocate().block);
  return blocks;
}

template <class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(BlockPool, HandsOutEveryBlockButTheNullBlockOnce) {
  BlockPool pool(5);
  EXPECT_EQ(pool.num_usable(), 4);
  EXPECT_EQ(allocate(pool, 4), (std::vector<BlockId>{1, 2, 3, 4}));
  EXPECT_EQ(pool.allocate().block, kNullBlock);
  EXPECT_EQ(pool.num_in_use(), 4);
  EXPECT_EQ(pool.num_available(), 0);
  pool.validate();
}

TEST(BlockPool, UsesTheBlockThatWasFreedLastFirst) {
  BlockPool pool(5);
  allocate(pool, 4);
  pool.release_to_free(2);
  pool.release_to_free(4);
  EXPECT_EQ(pool.allocate().block, 4);
  EXPECT_EQ(pool.allocate().block, 2);
}

TEST(BlockPool, CountsReferences) {
  BlockPool pool(3);
  const BlockId block = pool.allocate().block;
  pool.add_ref(block);
  EXPECT_FALSE(pool.release_to_free(block));
  EXPECT_TRUE(pool.is_in_use(block));
  EXPECT_TRUE(pool.release_to_free(block));
  EXPECT_TRUE(pool.is_free(block));
}

TEST(BlockPool, EvictsTheLeastRecentlyUsedAfterAllFreeOnes) {
  BlockPool pool(4);
  allocate(pool, 3);
  pool.release_to_evictable(3);
  pool.release_to_evictable(1);
  pool.release_to_free(2);
  EXPECT_EQ(eviction_order(pool), (std::vector<BlockId>{3, 1}));
  const BlockPool::Allocation from_free = pool.allocate();
  EXPECT_EQ(from_free.block, 2);
  EXPECT_FALSE(from_free.evicted);
  const BlockPool::Allocation evicted = pool.allocate();
  EXPECT_EQ(evicted.block, 3);
  EXPECT_TRUE(evicted.evicted);
  pool.validate();
}

TEST(BlockPool, AReferenceTakesABlockOutOfTheMiddleOfTheList) {
  BlockPool pool(5);
  allocate(pool, 4);
  for (const BlockId block : {1, 2, 3, 4}) pool.release_to_evictable(block);
  pool.add_ref(2);
  EXPECT_EQ(eviction_order(pool), (std::vector<BlockId>{1, 3, 4}));
  pool.release_to_evictable(2);
  EXPECT_EQ(eviction_order(pool), (std::vector<BlockId>{1, 3, 4, 2}));
  pool.drop(3);
  EXPECT_EQ(eviction_order(pool), (std::vector<BlockId>{1, 4, 2}));
  EXPECT_TRUE(pool.is_free(3));
  pool.validate();
}

TEST(BlockPool, ABlockCanBeQueuedBeforeAnother) {
  BlockPool pool(4);
  allocate(pool, 3);
  pool.release_to_evictable(1);
  pool.release_to_evictable(2);
  pool.release_to_evictable(3, 2);
  EXPECT_EQ(eviction_order(pool), (std::vector<BlockId>{1, 3, 2}));
  pool.validate();
}

TEST(BlockPool, APinKeepsABlockAndIsNoSharing) {
  BlockPool pool(3);
  const BlockId block = pool.allocate().block;
  pool.pin(block);
  EXPECT_EQ(pool.num_refs(block), 2);
  EXPECT_EQ(pool.num_pins(block), 1);
  EXPECT_FALSE(pool.release_to_free(block));
  pool.unpin(block);
  EXPECT_TRUE(pool.release_to_free(block));
  pool.validate();
}

TEST(BlockPool, NotesStayWithABlockWhileItIsInUse) {
  BlockPool pool(3);
  const BlockId block = pool.allocate().block;
  EXPECT_EQ(pool.note(block), 0);
  pool.set_note(block, 7);
  pool.add_ref(block);
  EXPECT_EQ(pool.note(block), 7);
  pool.release_to_free(block);
  pool.release_to_evictable(block);
  pool.add_ref(block);
  EXPECT_EQ(pool.note(block), 0);
}

TEST(BlockPool, Grows) {
  BlockPool pool(2);
  allocate(pool, 1);
  EXPECT_TRUE(pool.resize(4));
  EXPECT_EQ(allocate(pool, 3), (std::vector<BlockId>{2, 3, kNullBlock}));
  pool.validate();
}

TEST(BlockPool, ShrinkingWaitsForBlocksInUse) {
  BlockPool pool(6);
  allocate(pool, 5);
  pool.release_to_free(2);
  EXPECT_FALSE(pool.resize(3));
  EXPECT_TRUE(pool.is_shrinking());
  EXPECT_EQ(pool.num_usable(), 2);
  EXPECT_EQ(pool.allocate().block, 2);
  EXPECT_EQ(pool.allocate().block, kNullBlock);
  pool.validate();
  pool.release_to_free(5);
  pool.release_to_evictable(3);  // beyond the end there is no keeping
  EXPECT_TRUE(pool.is_shrinking());
  pool.release_to_free(4);
  EXPECT_FALSE(pool.is_shrinking());
  EXPECT_EQ(pool.id_limit(), 3);
  EXPECT_EQ(pool.num_free(), 0);
  pool.validate();
}

TEST(BlockPool, GrowingCallsOffAShrink) {
  BlockPool pool(6);
  allocate(pool, 5);
  pool.release_to_free(5);
  EXPECT_FALSE(pool.resize(3));
  EXPECT_TRUE(pool.resize(7));
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(allocate(pool, 2), (std::vector<BlockId>{5, 6}));
  pool.validate();
}

TEST(BlockPool, RefusesWrongIdsAndStatesByName) {
  BlockPool pool(4);
  const BlockId block = pool.allocate().block;
  EXPECT_EQ(message_of([&] { pool.add_ref(kNullBlock); }), "block 0 is not one of 1 to 3");
  EXPECT_EQ(message_of([&] { pool.add_ref(4); }), "block 4 is not one of 1 to 3");
  EXPECT_EQ(message_of([&] { pool.add_ref(-1); }), "block -1 is not one of 1 to 3");
  EXPECT_EQ(message_of([&] { pool.add_ref(2); }), "block 2 is free: nothing to refer to");
  EXPECT_EQ(message_of([&] { pool.release_to_free(3); }), "block 3 is not in use");
  EXPECT_EQ(message_of([&] { pool.drop(block); }), "block 1 is not evictable");
  EXPECT_EQ(message_of([&] { pool.unpin(block); }), "block 1 is not pinned");
  pool.release_to_evictable(block);
  EXPECT_EQ(message_of([&] { pool.release_to_evictable(block); }), "block 1 is not in use");
  EXPECT_EQ(message_of([&] { pool.resize(1); }), "block 1 is evictable and beyond the new size 1");
  EXPECT_EQ(message_of([] { BlockPool(0); }),
            "a pool has between 1 and 2147483647 blocks, the null block included, not 0");
  pool.validate();
}

}  // namespace
}  // namespace quire
