// SPDX-License-Identifier: Apache-2.0
// Prompts, chunks, verification and generation in one batch; tree masks; results that must not
// depend on the batch.
#include "conformance/case_builder.h"

namespace quire::conformance {
namespace {

using enum Suite;

std::vector<SequenceShape> usual() {
  return {{1, 40}, {7, 70}, {0, 20}, {1, 0}, {20, 20}, {3, 129}, {1, 257}, {33, 50}, {1, 16}};
}

// Drafts of speculative decoding: q_len <= kv_len.
std::vector<SequenceShape> drafts() {
  return {{8, 40}, {1, 9}, {5, 5}, {16, 80}, {0, 7}, {9, 23}, {21, 130}, {3, 33}};
}

CaseBuilder mixed(const std::string& what, Suite suite = kStandard) {
  return {concat("mixed/", what), suite, usual()};
}

void add_basics(std::vector<Case>& cases) {
  mixed("basic", kSmoke).add_to(cases);
  mixed("f32").query(DType::kF32).kv(DType::kF32).add_to(cases);
  mixed("window").mask({.window_left = 11}).add_to(cases);
  mixed("chunk").mask({.chunk = 24}).add_to(cases);
  mixed("alibi").alibi().add_to(cases);
  mixed("sinks").sinks().add_to(cases);
  mixed("bias").bias(BiasStyle::kFull).add_to(cases);
  mixed("bias_keys_only", kSmoke).bias(BiasStyle::kKeysOnly).add_to(cases);
  mixed("growing").data(DataStyle::kGrowing).add_to(cases);
  mixed("encoder").mask({.causal = false}).add_to(cases);
  mixed("everything", kSmoke)
      .softcap(5.0F)
      .alibi()
      .sinks()
      .bias(BiasStyle::kSharedHeads, DType::kBF16)
      .mask({.window_left = 30, .chunk = 100})
      .kv(DType::kF8E4M3, ScaleGranularity::kPerTokenHead)
      .arrival(Arrival::kAppended)
      .with([](Case& c) {
        c.padding_rows = 2;
        c.padding_slots = true;
        c.tensors = TensorStyle::kFusedRows;
        c.table = TableStyle::kIndexed;
      })
      .add_to(cases);
  mixed("padding", kSmoke)
      .arrival(Arrival::kAppended)
      .with([](Case& c) {
        c.padding_rows = 5;
        c.padding_slots = true;
      })
      .add_to(cases);
  mixed("shared_prefix").with([](Case& c) { c.shared_blocks = 4; }).add_to(cases);
  mixed("shared_prefix_fused")
      .arrival(Arrival::kFused)
      .with([](Case& c) { c.shared_blocks = 2; })
      .add_to(cases);
  mixed("preferred_fused").cache(CacheStyle::kPreferred).arrival(Arrival::kFused).add_to(cases);
  mixed("preferred_i8")
      .cache(CacheStyle::kPreferred)
      .kv(DType::kI8, ScaleGranularity::kPerHead)
      .arrival(Arrival::kAppended)
      .add_to(cases);
  mixed("large_model", kFull).heads(32, 8).dims(128, 128).add_to(cases);
}

void add_trees(std::vector<Case>& cases) {
  const auto tree = [](const std::string& what, TreeStyle style, Suite suite = kStandard) {
    return std::move(CaseBuilder(concat("mixed/tree/", what), suite, drafts()).tree(style));
  };
  tree("chain", TreeStyle::kChain).add_to(cases);
  tree("branching", TreeStyle::kBranching, kSmoke).add_to(cases);
  tree("depths", TreeStyle::kDepths).add_to(cases);
  tree("depths_alibi", TreeStyle::kDepths, kSmoke).alibi().add_to(cases);
  tree("depths_window", TreeStyle::kDepths).mask({.window_left = 3}).add_to(cases);
  tree("depths_chunk", TreeStyle::kDepths).mask({.chunk = 4}).add_to(cases);
  tree("branching_window", TreeStyle::kBranching).mask({.window_left = 5}).add_to(cases);
  tree("branching_alibi", TreeStyle::kBranching).alibi().add_to(cases);
  tree("some_plain", TreeStyle::kSomePlain).alibi().add_to(cases);
  tree("bias_sinks", TreeStyle::kBranching).bias(BiasStyle::kFull).sinks().add_to(cases);
  tree("appended", TreeStyle::kBranching).arrival(Arrival::kAppended).add_to(cases);
  tree("padding", TreeStyle::kDepths)
      .alibi()
      .with([](Case& c) { c.padding_rows = 3; })
      .add_to(cases);
  tree("f16_head_dim_128", TreeStyle::kBranching)
      .query(DType::kF16)
      .kv(DType::kF16)
      .dims(128, 128)
      .add_to(cases);
}

void add_invariance(std::vector<Case>& cases) {
  const auto invariant = [](const std::string& what, Suite suite,
                            std::vector<SequenceShape> sequences) {
    return std::move(CaseBuilder(concat("mixed/invariance/", what), suite, std::move(sequences))
                         .check(Check::kInvariance));
  };
  invariant("basic", kSmoke, usual()).add_to(cases);
  invariant("f32", kStandard, usual()).query(DType::kF32).kv(DType::kF32).add_to(cases);
  invariant("decode", kStandard,
            {{1, 1}, {1, 1025}, {1, 130}, {1, 2300}, {1, 513}, {1, 17}, {1, 4097}, {1, 300}})
      .heads(8, 2)
      .add_to(cases);
  invariant("one_long_among_short", kStandard, {{1, 5000}, {1, 3}, {1, 4}, {1, 5}, {1, 1}})
      .heads(16, 2)
      .add_to(cases);
  invariant("prefill", kStandard, {{130, 130}, {17, 300}, {64, 64}, {3, 3}, {40, 900}})
      .heads(4, 2)
      .add_to(cases);
  invariant("window_chunk", kStandard, usual())
      .mask({.window_left = 40, .chunk = 64})
      .add_to(cases);
  invariant("bias", kStandard, usual()).bias(BiasStyle::kFull).add_to(cases);
  invariant("tree", kStandard, drafts()).tree(TreeStyle::kSomePlain).alibi().add_to(cases);
  invariant("f8", kStandard, usual())
      .kv(DType::kF8E4M3, ScaleGranularity::kPerTokenHead)
      .arrival(Arrival::kAppended)
      .add_to(cases);
  invariant("preferred", kStandard, usual()).cache(CacheStyle::kPreferred).add_to(cases);
  // Levels may fetch small and large blocks in ways of their own, and a short item alone in
  // another.
  for (const int size : {16, 128}) {
    invariant(concat("preferred_decode/", size), kStandard,
              {{1, 1}, {1, 1025}, {1, 130}, {4, 2300}, {1, 513}, {2, 17}, {1, 4097}, {16, 300}})
        .heads(16, 4)
        .dims(128, 128)
        .block_size(size)
        .cache(CacheStyle::kPreferred)
        .add_to(cases);
  }
  invariant("preferred_tree", kStandard, drafts())
      .tree(TreeStyle::kSomePlain)
      .block_size(128)
      .cache(CacheStyle::kPreferred)
      .add_to(cases);
  invariant("preferred_f8", kStandard, usual())
      .kv(DType::kF8E4M3, ScaleGranularity::kPerTokenHead)
      .block_size(128)
      .cache(CacheStyle::kPreferred)
      .add_to(cases);
  invariant("preferred_mla", kStandard, {{1, 700}, {2, 1300}, {1, 64}, {9, 9}})
      .heads(16, 1)
      .dims(576, 512)
      .with([](Case& c) { c.spec.kv.v_in_k = true; })
      .block_size(128)
      .cache(CacheStyle::kPreferred)
      .add_to(cases);
  invariant("ragged", kStandard, usual()).cache(CacheStyle::kRagged).add_to(cases);
  invariant("cross", kStandard, usual()).cross().add_to(cases);
  invariant("mla", kStandard, {{1, 700}, {2, 1300}, {1, 64}, {9, 9}})
      .heads(16, 1)
      .dims(576, 512)
      .with([](Case& c) { c.spec.kv.v_in_k = true; })
      .add_to(cases);
  invariant("many", kFull,
            [] {
              std::vector<SequenceShape> sequences;
              for (std::int64_t n = 0; n < 64; ++n) {
                sequences.push_back({n % 5 == 0 ? n : 1, 1 + n * 97 % 2500});
              }
              return sequences;
            }())
      .heads(4, 2)
      .add_to(cases);
}

}  // namespace

void add_mixed_cases(std::vector<Case>& cases) {
  add_basics(cases);
  add_trees(cases);
  add_invariance(cases);
}

}  // namespace quire::conformance
