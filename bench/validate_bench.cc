// SPDX-License-Identifier: Apache-2.0
// What validation adds to a step, once per step (prepare) and once per layer (append and attend).
// A decode step of 64 sequences with 4096 keys takes milliseconds per layer; validation should stay
// below 20 us of it.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "attention/validate.h"

namespace quire {
namespace {

AttentionSpec make_spec() {
  AttentionSpec spec;
  spec.num_q_heads = 32;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.value_dim = 128;
  return spec;
}

// num_sequences with kv_len keys, of which the last q_len are new; blocks lie anywhere.
struct Batch {
  Batch(const AttentionSpec& spec, std::int64_t num_sequences, std::int64_t q_len,
        std::int64_t kv_len)
      : row_stride((kv_len + spec.kv.block_size - 1) / spec.kv.block_size),
        num_blocks(num_sequences * row_stride),
        offsets(static_cast<std::size_t>(num_sequences + 1)),
        lens(static_cast<std::size_t>(num_sequences), static_cast<std::int32_t>(kv_len)),
        indices(static_cast<std::size_t>(num_blocks)) {
    std::iota(indices.begin(), indices.end(), 0);
    std::shuffle(indices.begin(), indices.end(), std::mt19937(1));
    for (std::int64_t s = 0; s < num_sequences; ++s) {
      offsets[static_cast<std::size_t>(s + 1)] = static_cast<std::int32_t>((s + 1) * q_len);
      for (std::int64_t j = kv_len - q_len; j < kv_len; ++j) {
        const std::int64_t entry = s * row_stride + j / spec.kv.block_size;
        const std::int64_t block = indices[static_cast<std::size_t>(entry)];
        slots.push_back(block * spec.kv.block_size + j % spec.kv.block_size);
      }
    }
    bounds = {.max_sequences = num_sequences,
              .max_tokens = num_sequences * q_len,
              .max_kv_len = kv_len,
              .max_total_kv_len = num_sequences * kv_len};
    scratch.resize(static_cast<std::size_t>(validation_scratch_bytes(bounds)) /
                   sizeof(std::int64_t));
    view.queries = QueryRanges::packed(offsets);
    view.kv = {lens, BlockTables::padded(indices, row_stride), slots};
  }

  std::int64_t row_stride;
  std::int64_t num_blocks;
  std::vector<std::int32_t> offsets;  // [num_sequences + 1]
  std::vector<std::int32_t> lens;     // [num_sequences]
  std::vector<std::int32_t> indices;  // [num_sequences, row_stride]
  std::vector<std::int64_t> slots;    // [num_sequences * q_len]
  std::vector<std::int64_t> scratch;
  BatchBounds bounds;
  BatchView view;
};

// Sequences, q_len, kv_len.
void BM_validate_batch(benchmark::State& state) {
  const AttentionSpec spec = make_spec();
  Batch batch(spec, state.range(0), state.range(1), state.range(2));
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        validate_batch(spec, batch.bounds, batch.view, Device{}, batch.scratch.data()));
  }
  const auto metadata_bytes = static_cast<std::int64_t>(
      (batch.offsets.size() + batch.lens.size() + batch.indices.size()) * sizeof(std::int32_t) +
      batch.slots.size() * sizeof(std::int64_t));
  state.SetBytesProcessed(state.iterations() * metadata_bytes);
}
BENCHMARK(BM_validate_batch)
    ->ArgNames({"sequences", "q_len", "kv_len"})
    ->Args({64, 1, 4096})
    ->Args({1, 1, 131072})
    ->Args({256, 1, 1024})
    ->Args({1, 8192, 8192})
    ->Args({16, 512, 4096});

// append and attend of one layer: only descriptions and facts, so the tensors are never touched.
void BM_validate_layer(benchmark::State& state) {
  const AttentionSpec spec = make_spec();
  Batch batch(spec, 64, 1, 4096);
  const BatchFacts facts =
      validate_batch(spec, batch.bounds, batch.view, Device{}, batch.scratch.data());
  alignas(64) static std::byte memory[64];
  const std::int64_t block_elements = std::int64_t{8} * 16 * 128;
  KvCacheView cache;
  cache.k = memory;
  cache.k_strides = cache.v_strides = {.block = 2 * block_elements, .head = 16 * 128, .token = 128};
  cache.v = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) +
                                    static_cast<std::uintptr_t>(2 * block_elements));
  cache.num_blocks = batch.num_blocks;
  cache.num_kv_heads = spec.num_kv_heads;
  cache.head_dim = cache.value_dim = 128;
  cache.format = spec.kv;
  NewKv new_kv;
  new_kv.k = TensorView(memory, DType::kBF16, {64, 8, 128});
  new_kv.v = TensorView(memory, DType::kBF16, {64, 8, 128});
  const TensorView q(memory, DType::kBF16, {64, 32, 128});
  void* apart = reinterpret_cast<void*>(std::uintptr_t{1} << 55);
  const AttentionOutput output{MutableTensorView(apart, DType::kBF16, {64, 32, 128}), {}};
  for (auto _ : state) {
    validate_append(spec, facts, new_kv, cache, Device{});
    validate_attend(spec, facts, batch.view, {}, q, cache, output, Device{});
  }
}
BENCHMARK(BM_validate_layer);

// Copy-on-write and swaps: pairs of blocks among 100,000, in 80 layers of two caches.
void BM_validate_copies(benchmark::State& state) {
  constexpr std::int64_t kNumBlocks = 100'000;
  KvCacheView cache;
  cache.k = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
  cache.v = reinterpret_cast<void*>(std::uintptr_t{1} << 50);
  cache.k_strides = cache.v_strides = {.block = 8 * 16 * 128, .head = 16 * 128, .token = 128};
  cache.num_blocks = kNumBlocks;
  cache.num_kv_heads = 8;
  cache.head_dim = cache.value_dim = 128;
  const std::vector<KvCacheView> src(80, cache);
  std::vector<KvCacheView> dst(80, cache);
  for (std::uintptr_t i = 0; i < dst.size(); ++i) {
    dst[i].k = reinterpret_cast<void*>((i + 3) << 50);
  }
  std::vector<BlockCopy> copies(static_cast<std::size_t>(state.range(0)));
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto block = static_cast<std::int64_t>(i) * 7919 % kNumBlocks;
    copies[i] = {static_cast<std::int32_t>(block), static_cast<std::int32_t>(block)};
  }
  for (auto _ : state) {
    validate_copy_blocks(src, dst, copies, CopyKind::kSameLayout, Device{});
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_validate_copies)->ArgName("pairs")->Arg(1)->Arg(1000)->Arg(50000);

}  // namespace
}  // namespace quire
