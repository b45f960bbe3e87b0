// SPDX-License-Identifier: Apache-2.0
// A few sequences that grow token by token in a cache that moves between backends, every step held
// to exact attention over all tokens so far. For backends whose stored bits are their own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "quire/backend.h"

namespace quire::testing {

struct GenerationShape {
  int num_q_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 64;
  DType kv_dtype = DType::kF32;
  ScaleGranularity scales = ScaleGranularity::kNone;
  std::int64_t blocks_per_sequence = 4;  // of 32 tokens
};

// Q and out are f32; new K and V too, drawn so that the cache dtype holds them exactly unless it is
// an 8-bit one. One thread.
class Generation {
 public:
  explicit Generation(const GenerationShape& shape);
  ~Generation();

  // A cache of the backend's own layout. The prompts are stored by the first step.
  void start(AttentionBackend& backend, const std::vector<std::int64_t>& prompt_lens);
  // Stores what is new, attends, and adds one token to each sequence for the next step. The largest
  // difference of an output from exact attention over the tokens as they were drawn.
  double step(AttentionBackend& backend);
  // Exported by the backend that holds it, imported by another one.
  void move_to(AttentionBackend& backend);
  // To the host, other things in its place, and back.
  void swap_out_and_in(AttentionBackend& backend);
  // The largest difference of a stored value, exported, from what was drawn.
  double stored_error(AttentionBackend& backend);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire::testing
