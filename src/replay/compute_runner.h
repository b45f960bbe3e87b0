// SPDX-License-Identifier: Apache-2.0
// An engine under a made-up model, with a sample of the rows of every step verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "conformance/random.h"
#include "quire/engine.h"
#include "replay/row_verifier.h"
#include "replay/sequence_model.h"
#include "replay/step_runner.h"

namespace quire::replay {

struct ModelShape {
  int num_layers = 2;
  int num_q_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 64;
  DType dtype = DType::kF32;  // of Q, K, V, the cache and the outputs
};

AttentionSpec model_spec(const ModelShape& model, int block_size);
// Of one block in all layers, as `backend` stores it.
std::int64_t stored_block_bytes(const AttentionBackend& backend, const ModelShape& model,
                                int block_size);

struct ComputeOptions {
  ModelShape model{};
  SchedulerOptions scheduler{};
  BlockManagerOptions blocks{};    // its groups are the engine's
  std::int64_t verified_rows = 4;  // of every step
  std::uint64_t seed = 1;          // of the choice of rows
  bool canary = false;             // see EngineOptions
};

class ComputeRunner final : public StepRunner {
 public:
  // REQUIRES: the backend computes on the host.
  ComputeRunner(std::unique_ptr<AttentionBackend> backend, const ComputeOptions& options);

  RequestId submit(Request request) override;
  StepResult step(const BatchObserver& observe) override;
  void extend(RequestId id, Token token) override;
  void forget(RequestId id) override { chains_.erase(id.value); }
  std::int64_t num_unfinished() const override { return engine_.num_unfinished(); }
  const Scheduler& scheduler() const override { return engine_.scheduler(); }
  const BlockManager& block_manager() const override { return engine_.block_manager(); }
  double computing_seconds() const override { return computing_seconds_; }
  Verification verification() const override { return verifier_.result(); }

  const Engine& engine() const noexcept { return engine_; }

 private:
  Qkv make_qkv(int layer, const ScheduledBatch& batch);
  AttentionOutput make_output(int layer);
  void fill(QkvTensor tensor, int layer, const ScheduledBatch& batch, std::vector<std::byte>& out);
  void verify_rows();

  ComputeOptions options_;
  AttentionSpec spec_;
  Engine engine_;
  RowWriter writer_;
  RowVerifier verifier_;
  conformance::Random random_;
  std::unordered_map<std::uint64_t, TokenChain> chains_;  // of requests that have not ended

  // Of the step under way.
  std::vector<ScheduledSequence> sequences_;
  std::int64_t num_tokens_ = 0;
  std::vector<std::byte> q_, k_, v_;             // [num_tokens, heads, dim]
  std::vector<std::vector<std::byte>> outputs_;  // [num_layers][num_tokens, num_q_heads, dim]
  double making_seconds_ = 0;
  double computing_seconds_ = 0;
};

}  // namespace quire::replay
