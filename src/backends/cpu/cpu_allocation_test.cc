// SPDX-License-Identifier: Apache-2.0
// Between make_prepared and its end the CPU backend allocates nothing: neither in prepare, append
// and attend nor on its threads, for batches that differ from step to step. Counts every operator
// new of the whole test program.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "allocation/allocations.h"
#include "backends/cpu/cpu_backend.h"
#include "quire/kv_cache.h"

namespace quire {
namespace {

constexpr int kBlockSize = 16;
constexpr std::int32_t kMaxKeys = 3000;
constexpr std::int64_t kMaxTokens = 64;

struct Step {
  std::vector<std::int32_t> offsets = {0};
  std::vector<std::int32_t> kv_lens;
  std::vector<std::int32_t> tables;
  std::vector<std::int64_t> slots;

  // Sequences own the blocks from s * blocks on.
  void add(std::int32_t q_len, std::int32_t kv_len) {
    constexpr std::int32_t kBlocks = (kMaxKeys + kBlockSize - 1) / kBlockSize;
    const auto first = static_cast<std::int32_t>(kv_lens.size()) * kBlocks;
    for (std::int32_t i = 0; i < kBlocks; ++i) tables.push_back(first + i);
    for (std::int32_t i = kv_len - q_len; i < kv_len; ++i) {
      slots.push_back(std::int64_t{first} * kBlockSize + i);
    }
    offsets.push_back(offsets.back() + q_len);
    kv_lens.push_back(kv_len);
  }
  BatchView view() const {
    BatchView batch;
    batch.queries = QueryRanges::packed(offsets);
    batch.kv.lens = kv_lens;
    batch.kv.blocks =
        BlockTables::padded(tables, static_cast<std::int64_t>(tables.size() / kv_lens.size()));
    batch.kv.slots = slots;
    return batch;
  }
};

AttentionSpec make_spec() {
  AttentionSpec spec;
  spec.num_q_heads = 8;
  spec.num_kv_heads = 2;
  spec.head_dim = 64;
  spec.value_dim = 64;
  spec.q_dtype = DType::kF32;
  spec.out_dtype = DType::kF32;
  spec.kv.block_size = kBlockSize;
  return spec;
}

TEST(CpuAllocation, StepsAllocateNothing) {
  std::vector<Step> steps(3);
  for (int i = 0; i < 4; ++i) steps[0].add(1, 700 * (i + 1));  // with and without splits
  steps[1].add(40, 1000);
  steps[1].add(1, kMaxKeys);
  steps[2].add(1, 1);
  for (const std::string& level : cpu_isa_levels()) {
    BackendOptions options;
    options.num_threads = 3;
    options.isa = level;
    const auto backend = make_cpu_backend(options);
    AttentionSpec spec = make_spec();
    const KvLayout layout = backend->preferred_layout(spec);
    spec.kv.layout = layout.id;
    const KvCache cache(backend->memory(), spec, layout, {.num_layers = 1, .num_blocks = 4 * 188});
    const BatchBounds bounds{.max_sequences = 4,
                             .max_tokens = kMaxTokens,
                             .max_kv_len = kMaxKeys,
                             .max_total_kv_len = 4 * kMaxKeys};
    WorkspaceBuffer workspace(backend->memory(), backend->workspace(spec, bounds));
    const auto prepared = backend->make_prepared(spec, bounds, workspace.view());
    std::vector<float> input(kMaxTokens * 8 * 64, 0.25F);
    std::vector<float> output(input.size());

    const auto run = [&](const Step& step) {
      const std::int64_t rows = step.offsets.back();
      backend->prepare(*prepared, step.view());
      backend->append(*prepared,
                      {TensorView(input.data(), DType::kF32, {rows, 2, 64}),
                       TensorView(input.data(), DType::kF32, {rows, 2, 64})},
                      cache.layer(0));
      AttentionOutput where;
      where.out = MutableTensorView(output.data(), DType::kF32, {rows, 8, 64});
      backend->attend(*prepared, {}, TensorView(input.data(), DType::kF32, {rows, 8, 64}),
                      cache.layer(0), where);
    };
    const std::int64_t before = test::num_allocations();
    for (int round = 0; round < 3; ++round) {
      for (const Step& step : steps) run(step);
    }
    EXPECT_EQ(test::num_allocations() - before, 0) << level;
    EXPECT_GT(before, 0);
  }
}

}  // namespace
}  // namespace quire
