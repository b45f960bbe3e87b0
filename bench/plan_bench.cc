// SPDX-License-Identifier: Apache-2.0
// The time of planning, per batch, and of finding one item. 32/8 heads of dim 128 in bf16.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace quire {
namespace {

PlanSpec bench_spec(std::int64_t kv_heads_per_item) {
  AttentionSpec spec;
  spec.num_q_heads = 32;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.value_dim = 128;
  PlanParams params;
  params.kv_heads_per_item = kv_heads_per_item;
  return make_plan_spec(spec, params);
}

// Decodes with contexts up to 256k; every `prefill_every`-th sequence brings 512 tokens.
struct Batch {
  Batch(std::int64_t num_sequences, std::int64_t prefill_every) {
    offsets.push_back(0);
    for (std::int64_t s = 0; s < num_sequences; ++s) {
      const bool prefill = prefill_every > 0 && s % prefill_every == 0;
      offsets.push_back(offsets.back() + (prefill ? 512 : 1));
      kv_lens.push_back(static_cast<std::int32_t>(600 + s * 7919 % 260000));
    }
    view.queries = QueryRanges::packed(offsets);
    view.kv.lens = kv_lens;
    memory.resize(static_cast<std::size_t>(plan_bytes(num_sequences)) / sizeof(std::int64_t));
    plan = view_plan(memory.data(), num_sequences);
  }
  std::vector<std::int32_t> offsets, kv_lens;
  BatchView view;
  std::vector<std::int64_t> memory;
  BatchPlan plan;
};

// range(0): sequences; range(1): every how many sequences one is a prefill, 0: none.
void BM_plan(benchmark::State& state) {
  Batch batch(state.range(0), state.range(1));
  const PlanSpec spec = bench_spec(1);
  for (auto _ : state) {
    plan_batch(spec, batch.view, batch.plan);
    benchmark::DoNotOptimize(batch.memory.data());
    benchmark::ClobberMemory();
  }
  state.counters["items"] = static_cast<double>(batch.plan.offsets[batch.plan.num_sequences].items);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_plan)
    ->ArgNames({"sequences", "prefill_every"})
    ->Args({1, 0})
    ->Args({32, 0})
    ->Args({256, 0})
    ->Args({256, 16})
    ->Args({1024, 0})
    ->Unit(benchmark::kMicrosecond);

void BM_item_at(benchmark::State& state) {
  Batch batch(state.range(0), 16);
  const PlanSpec spec = bench_spec(1);
  plan_batch(spec, batch.view, batch.plan);
  const std::int64_t num_items = batch.plan.offsets[batch.plan.num_sequences].items;
  std::int64_t index = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(item_at(spec, batch.plan, index));
    index = (index + 7919) % num_items;
  }
}
BENCHMARK(BM_item_at)->ArgName("sequences")->Arg(1)->Arg(256);

// Once per make_prepared: a server's bounds.
void BM_plan_bounds(benchmark::State& state) {
  const PlanSpec spec = bench_spec(1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(plan_bounds(spec, {256, 8192, 131072, 1 << 20}));
  }
}
BENCHMARK(BM_plan_bounds)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quire
