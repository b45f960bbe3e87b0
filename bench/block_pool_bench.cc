// SPDX-License-Identifier: Apache-2.0
// The block pool and the block manager: pairs of allocate and free, in order and in random order,
// and the life of a sequence. Items per second are the figures to compare.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kv/block_pool.h"
#include "quire/block_manager.h"

namespace quire {
namespace {

// All blocks are taken, then pairs: free one, allocate one, in an order that the caches cannot
// guess.
void BM_pool_random_pairs(benchmark::State& state) {
  const std::int64_t num_blocks = state.range(0);
  BlockPool pool(num_blocks + 1);
  std::vector<BlockId> held(static_cast<std::size_t>(num_blocks));
  for (BlockId& block : held) block = pool.allocate().block;
  std::mt19937_64 random(1);
  std::shuffle(held.begin(), held.end(), random);
  // Free half of them in this order, so that the free stack is as scattered as the held ones.
  const std::size_t half = held.size() / 2;
  for (std::size_t i = 0; i < half; ++i) pool.release_to_free(held[i]);
  held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(half));
  std::size_t next = 0;
  // A batch: free 1000 blocks, allocate 1000; a request comes and another goes.
  constexpr std::size_t kBatch = 1000;
  for (auto _ : state) {
    const std::size_t first = next;
    for (std::size_t i = 0; i < kBatch; ++i) {
      pool.release_to_free(held[next]);
      next = next + 1 == held.size() ? 0 : next + 1;
    }
    next = first;
    for (std::size_t i = 0; i < kBatch; ++i) {
      held[next] = pool.allocate().block;
      next = next + 1 == held.size() ? 0 : next + 1;
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}
BENCHMARK(BM_pool_random_pairs)->Arg(10'000)->Arg(10'000'000);

// All blocks, then all of them back in random order, so that the next time they come in that order:
// every access misses the caches.
void BM_pool_random_sweep(benchmark::State& state) {
  const std::int64_t num_blocks = state.range(0);
  BlockPool pool(num_blocks + 1);
  std::vector<std::uint32_t> order(static_cast<std::size_t>(num_blocks));
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937_64 random(1);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<BlockId> held(order.size());
  for (auto _ : state) {
    for (BlockId& block : held) block = pool.allocate().block;
    for (const std::uint32_t i : order) pool.release_to_free(held[i]);
  }
  state.SetItemsProcessed(state.iterations() * num_blocks);
}
BENCHMARK(BM_pool_random_sweep)->Arg(10'000)->Arg(10'000'000)->Unit(benchmark::kMillisecond);

// Every allocation evicts the oldest content: the list is as long as the pool and scattered.
void BM_pool_evict_pairs(benchmark::State& state) {
  const std::int64_t num_blocks = state.range(0);
  BlockPool pool(num_blocks + 1);
  std::vector<BlockId> held(static_cast<std::size_t>(num_blocks));
  for (BlockId& block : held) block = pool.allocate().block;
  std::mt19937_64 random(1);
  std::shuffle(held.begin(), held.end(), random);
  for (const BlockId block : held) pool.release_to_evictable(block);
  for (auto _ : state) {
    const BlockPool::Allocation allocation = pool.allocate();
    bool evicted = allocation.evicted;
    benchmark::DoNotOptimize(evicted);
    pool.release_to_evictable(allocation.block);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_pool_evict_pairs)->Arg(10'000)->Arg(10'000'000);

BlockManagerOptions options_of(std::int64_t num_blocks, int block_size) {
  BlockManagerOptions options;
  options.block_size = block_size;
  options.pools = {{.num_blocks = num_blocks}};
  options.groups = {{}};
  options.validate_interval = 0;
  return options;
}

// One decode step of a batch: append, tables and slots, commit. Items are sequences.
void BM_manager_decode_step(benchmark::State& state) {
  const std::int64_t num_sequences = state.range(0);
  constexpr std::int64_t kPromptTokens = 1024;
  BlockManager manager(options_of(num_sequences * 160 + 1, 16));
  manager.reserve(num_sequences, 2560);
  std::vector<SequenceId> ids;
  const auto admit = [&](std::int64_t number) {
    std::vector<Token> tokens(kPromptTokens, static_cast<Token>(number));
    const SequenceId id = manager.admit(Prompt(tokens, 16))->id;
    const std::int64_t left = kPromptTokens - manager.num_tokens(id);
    benchmark::DoNotOptimize(manager.append(id, left));
    benchmark::DoNotOptimize(manager.take_copies().ticket);
    manager.commit_prompt(id, left);
    return id;
  };
  for (std::int64_t i = 0; i < num_sequences; ++i) ids.push_back(admit(i));
  const std::int64_t stride = 160;
  std::vector<std::int32_t> lens(ids.size());
  std::vector<std::int32_t> queries(ids.size() + 1);
  std::vector<std::int32_t> indices(ids.size() * static_cast<std::size_t>(stride));
  std::vector<std::int64_t> slots(ids.size());
  Token token = 0;
  for (auto _ : state) {
    for (const SequenceId id : ids) benchmark::DoNotOptimize(manager.append(id, 1));
    manager.write_step(0, ids,
                       {.query_begins = queries,
                        .kv_lens = lens,
                        .indices = indices,
                        .row_stride = stride,
                        .begins = {},
                        .slots = slots});
    manager.complete_copies(manager.take_copies().ticket);
    ++token;
    for (const SequenceId id : ids) manager.commit(id, std::span(&token, 1));
    if (manager.num_tokens(ids[0]) < 2500) continue;
    state.PauseTiming();
    for (const SequenceId id : ids) manager.truncate(id, kPromptTokens);
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * num_sequences);
}
BENCHMARK(BM_manager_decode_step)->Arg(256);

// A request of which all but the last block is cached: match, take, compute one block, free.
void BM_manager_cached_request(benchmark::State& state) {
  const auto num_tokens = static_cast<std::size_t>(state.range(0));
  BlockManager manager(options_of(100'000, 16));
  std::vector<Token> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  const Prompt prompt(tokens, 16);
  for (auto _ : state) {
    const Admission admission = *manager.admit(prompt);
    const std::int64_t left = prompt.num_tokens() - admission.num_cached_tokens;
    benchmark::DoNotOptimize(manager.append(admission.id, left));
    benchmark::DoNotOptimize(manager.take_copies().ticket);
    manager.commit_prompt(admission.id, left);
    manager.free(admission.id);
    manager.complete_copies(manager.take_copies().ticket);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(num_tokens / 16));
}
BENCHMARK(BM_manager_cached_request)->Arg(1024)->Arg(16384);

}  // namespace
}  // namespace quire
