// SPDX-License-Identifier: Apache-2.0
// attend of the mutant backend: one row at a time in f32, in splits of the keys that are merged in
// order. Every deviation asks for its bug by name.
#pragma once

#include <cstdint>
#include <vector>

#include "mutant_backend.h"
#include "quire/backend.h"

namespace quire::conformance {

class MutantAttention {
 public:
  MutantAttention(Bug bug, const PreparedBatch& prepared, const AttentionParams& params,
                  const TensorView& q, const KvCacheView& cache, const AttentionOutput& output)
      : bug_(bug),
        spec_(prepared.spec()),
        batch_(prepared.batch()),
        params_(params),
        q_(q),
        cache_(cache),
        output_(output) {}

  // The first `num_sequences` of the batch.
  void run(std::int64_t num_sequences, bool drop_last_split);

 private:
  // One sequence as this backend understands it.
  struct Sequence {
    std::int64_t s = 0, first_row = 0, q_len = 0, kv_len = 0;
    const std::uint8_t* tree = nullptr;
    const std::int32_t* depths = nullptr;
  };
  // Softmax over some of the keys of a row.
  struct State {
    float max, sum;
    std::vector<float> out;  // [value_dim]
  };
  // K and V of one sequence and kv head, loaded when first needed.
  struct Loaded {
    std::vector<std::uint8_t> is_loaded;  // [kv_len + 1]
    std::vector<float> k, v;              // [kv_len + 1, dim]
  };

  bool has(Bug bug) const { return bug_ == bug; }
  Sequence sequence(std::int64_t s) const;
  std::int64_t query_position(const Sequence& seq, std::int64_t i) const;
  std::int64_t key_position(const Sequence& seq, std::int64_t j) const;
  bool in_tree(const Sequence& seq, std::int64_t i, std::int64_t new_key) const;
  bool is_visible(const Sequence& seq, std::int64_t i, std::int64_t j) const;
  std::int64_t kv_head_of(std::int64_t head) const;
  std::int64_t slot_of(const Sequence& seq, std::int64_t j) const;
  void load(const Sequence& seq, std::int64_t kv_head, std::int64_t j);
  void load_row(std::int64_t slot, std::int64_t kv_head, bool is_k, float* row) const;
  float bias_of(const Sequence& seq, std::int64_t head, std::int64_t i, std::int64_t j) const;
  float score(const Sequence& seq, std::int64_t head, std::int64_t i, std::int64_t j);
  State attend_split(const Sequence& seq, std::int64_t head, std::int64_t i, std::int64_t begin,
                     std::int64_t end);
  void join(State& all, const State& part) const;
  void attend_row(const Sequence& seq, std::int64_t head, std::int64_t i, bool drop_last_split);
  void store_row(std::int64_t row, std::int64_t head, State& state) const;
  void write_padding_rows() const;

  Bug bug_;
  const AttentionSpec& spec_;
  const BatchView& batch_;
  const AttentionParams& params_;
  const TensorView& q_;
  const KvCacheView& cache_;
  const AttentionOutput& output_;
  Loaded loaded_;
};

}  // namespace quire::conformance
