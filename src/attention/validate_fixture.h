// SPDX-License-Identifier: Apache-2.0
// For tests: one valid step with everything in it, which a test spoils in one place, and a run of
// all public calls over it that says which call refused it and how.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/recording_backend.h"
#include "quire/backend.h"

namespace quire::testing {

// Four sequences of a causal batch, with a free row between the last two:
//   s   rows    q_len  kv_len  table      what it is
//   0   [0, 3)  3      3       5          prefill
//   1   [3, 4)  1      10      2 7 3      decode
//   2   [4, 4)  0      5       -9 -9      no queries: its table may hold anything
//   3   [5, 7)  2      9       8 1 4      a tree of two tokens
// Views point into the vectors: tests change values in place and sizes in the views.
struct Step {
  Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  static constexpr int kNumBlocks = 10;

  AttentionSpec spec;
  BatchBounds bounds{
      .max_sequences = 6, .max_tokens = 16, .max_kv_len = 64, .max_total_kv_len = 100};
  std::int64_t missing_workspace_bytes = 0;
  std::int64_t workspace_offset_bytes = 0;

  std::vector<std::int32_t> begins{0, 3, 4, 5};
  std::vector<std::int32_t> ends{3, 4, 4, 7};
  std::vector<std::int32_t> lens{3, 10, 5, 9};
  std::vector<std::int32_t> indices{5, -9, -9, 2, 7, 3, -9, -9, -9, 8, 1, 4};
  std::vector<std::int32_t> index_begins{0, 3, 6, 9, 12};
  std::vector<std::int64_t> rows{0, 7, -5, 30};
  std::vector<std::int64_t> slots{20, 21, 22, 13, -1, 16};
  std::vector<std::uint8_t> tree_bits{0b01, 0b11};
  std::vector<std::int64_t> tree_begins{-1, -1, -1, 0};
  std::vector<std::int32_t> tree_depths{9, 9, 9, 9, 9, 0, 1};
  BatchView batch;

  std::vector<float> slopes{0.5F, 0.25F, 0.125F, 0.0625F};
  std::vector<float> sinks{0.0F, 1.0F, -1.0F, 2.0F};
  AttentionParams params;

  std::vector<float> new_k_data, new_v_data, q_data, bias_data;
  std::vector<float> out_data, lse_data, merged_out_data, merged_lse_data;
  std::vector<float> k_data, v_data, k_scale_data, v_scale_data, other_k_data, other_v_data;
  NewKv new_kv;
  KvCacheView cache;
  TensorView q;
  AttentionOutput output;
  bool attend_stores = false;  // attend gets new_kv, append is left out

  std::vector<Partial> partials;
  ArrayView<float> merge_sinks;
  AttentionOutput merged;

  std::vector<KvCacheView> src, dst;  // dst is another cache; two layers
  std::vector<BlockCopy> copies{{0, 4}, {0, 5}, {9, 1}};
  BlockRegionCopy region{.blocks = {2, 6}, .first_token = 1, .num_tokens = 3};
  Stream stream;

  // Values of the caches become 8-bit ones with these scales; memory stays as large as it was.
  void quantize(ScaleGranularity granularity);
  // The tables become indexed, or ragged over a view of the same memory with block size 1.
  void use_indexed();
  void use_ragged();
  // The unaligned counterpart of the spec.
  void use_cross();

  // All that a call may write, and whether it is as it was.
  void remember_written();
  bool written_is_unchanged() const;

 private:
  std::vector<std::vector<float>> written() const;
  std::vector<std::vector<float>> remembered_;
};

// What the first refused call said; empty if none was.
struct Refusal {
  std::string call;
  ErrorCode code = ErrorCode::kOk;
  std::string message;
};

// supports, make_prepared, prepare, append, attend, merge, copy_blocks, copy_region, export_blocks,
// import_blocks, in this order.
Refusal run_all(RecordingBackend& backend, Step& step);

// A step that is wrong in one place, the call that must refuse it, and all of its message; where
// that ends with an address, a final * stands for it.
struct Case {
  const char* name;
  const char* call;
  void (*spoil)(Step&);
  const char* message;
};

// Fails the running test unless exactly that happens, and nothing was written by the refused call.
void expect_refused(const Case& spoiled);

}  // namespace quire::testing
