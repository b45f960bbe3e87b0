// SPDX-License-Identifier: Apache-2.0
#include "replay/compute_runner.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace quire::replay {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

float score_scale(const ModelShape& model) {
  return 1.0F / std::sqrt(static_cast<float>(model.head_dim));
}

EngineOptions engine_options(const ComputeOptions& options) {
  EngineOptions engine;
  EngineGroup group;
  group.spec = model_spec(options.model, options.blocks.block_size);
  engine.groups = {group};
  EngineLayer layer;
  layer.params.scale = score_scale(options.model);
  engine.layers.assign(static_cast<std::size_t>(options.model.num_layers), layer);
  engine.blocks = options.blocks;
  engine.blocks.groups.clear();
  engine.scheduler = options.scheduler;
  engine.canary = options.canary;
  return engine;
}

}  // namespace

AttentionSpec model_spec(const ModelShape& model, int block_size) {
  AttentionSpec spec;
  spec.num_q_heads = model.num_q_heads;
  spec.num_kv_heads = model.num_kv_heads;
  spec.head_dim = spec.value_dim = model.head_dim;
  spec.q_dtype = spec.out_dtype = spec.kv.dtype = model.dtype;
  spec.kv.block_size = block_size;
  validate(spec);
  return spec;
}

std::int64_t stored_block_bytes(const AttentionBackend& backend, const ModelShape& model,
                                int block_size) {
  return backend.preferred_layout(model_spec(model, block_size)).block_bytes * model.num_layers;
}

ComputeRunner::ComputeRunner(std::unique_ptr<AttentionBackend> backend,
                             const ComputeOptions& options)
    : options_(options),
      spec_(model_spec(options.model, options.blocks.block_size)),
      engine_(std::move(backend), engine_options(options)),
      writer_(spec_),
      verifier_(spec_, score_scale(options.model)),
      random_(options.seed),
      outputs_(static_cast<std::size_t>(options.model.num_layers)) {
  require(engine_.backend().info().device.kind == DeviceKind::kHost,
          "a replay computes on the host; ", engine_.backend().info().name, " does not");
}

RequestId ComputeRunner::submit(Request request) {
  TokenChain chain;
  chain.extend(request.prompt.tokens());
  const RequestId id = engine_.submit(std::move(request));
  chains_.emplace(id.value, std::move(chain));
  return id;
}

void ComputeRunner::extend(RequestId id, Token token) {
  engine_.extend(id, token);
  chains_.at(id.value).extend({&token, 1});
}

StepResult ComputeRunner::step(const BatchObserver& observe) {
  num_tokens_ = 0;
  making_seconds_ = 0;
  const Clock::time_point start = Clock::now();
  const StepResult result = engine_.step(
      [&](int layer, const ScheduledBatch& batch) {
        const Clock::time_point making = Clock::now();
        if (layer == 0) {
          sequences_.assign(batch.sequences().begin(), batch.sequences().end());
          num_tokens_ = batch.num_tokens();
          observe(batch);
        }
        const Qkv qkv = make_qkv(layer, batch);
        making_seconds_ += seconds_since(making);
        return qkv;
      },
      [&](int layer) {
        const Clock::time_point making = Clock::now();
        const AttentionOutput output = make_output(layer);
        making_seconds_ += seconds_since(making);
        return output;
      });
  computing_seconds_ = seconds_since(start) - making_seconds_;
  if (num_tokens_ > 0) verify_rows();
  return result;
}

void ComputeRunner::fill(QkvTensor tensor, int layer, const ScheduledBatch& batch,
                         std::vector<std::byte>& out) {
  const auto row_bytes = static_cast<std::size_t>(writer_.row_bytes(tensor));
  out.resize(static_cast<std::size_t>(batch.num_tokens()) * row_bytes);
  for (const ScheduledSequence& sequence : batch.sequences()) {
    const TokenChain& chain = chains_.at(sequence.request.value);
    for (std::int64_t i = 0; i < sequence.num_tokens; ++i) {
      const auto row = static_cast<std::size_t>(sequence.first_row + i);
      writer_.write(chain.digest(sequence.first_position + i), layer, tensor,
                    out.data() + row * row_bytes);
    }
  }
}

Qkv ComputeRunner::make_qkv(int layer, const ScheduledBatch& batch) {
  fill(QkvTensor::kQ, layer, batch, q_);
  fill(QkvTensor::kK, layer, batch, k_);
  fill(QkvTensor::kV, layer, batch, v_);
  const std::int64_t num_rows = batch.num_tokens();
  Qkv qkv;
  qkv.q = TensorView(q_.data(), spec_.q_dtype, {num_rows, spec_.num_q_heads, spec_.head_dim});
  qkv.k = TensorView(k_.data(), spec_.q_dtype, {num_rows, spec_.num_kv_heads, spec_.head_dim});
  qkv.v = TensorView(v_.data(), spec_.q_dtype, {num_rows, spec_.num_kv_heads, spec_.value_dim});
  return qkv;
}

// All ones: bits that no attention leaves behind, NaN in every format.
AttentionOutput ComputeRunner::make_output(int layer) {
  std::vector<std::byte>& out = outputs_[static_cast<std::size_t>(layer)];
  const std::int64_t row_elements = std::int64_t{spec_.num_q_heads} * spec_.value_dim;
  out.assign(static_cast<std::size_t>(num_tokens_ * row_elements * dtype_bytes(spec_.out_dtype)),
             std::byte{0xff});
  AttentionOutput output;
  output.out = MutableTensorView(out.data(), spec_.out_dtype,
                                 {num_tokens_, spec_.num_q_heads, spec_.value_dim});
  return output;
}

void ComputeRunner::verify_rows() {
  const auto row_bytes = static_cast<std::size_t>(std::int64_t{spec_.num_q_heads} *
                                                  spec_.value_dim * dtype_bytes(spec_.out_dtype));
  for (std::int64_t i = 0; i < options_.verified_rows; ++i) {
    const int layer = static_cast<int>(random_.below(options_.model.num_layers));
    // A sequence first, so that decodes beside a long prefill are seen as often.
    const ScheduledSequence& sequence =
        sequences_[static_cast<std::size_t>(random_.below(std::ssize(sequences_)))];
    const std::int64_t offset = random_.below(sequence.num_tokens);
    const auto row = static_cast<std::size_t>(sequence.first_row + offset);
    verifier_.verify({.layer = layer,
                      .request = static_cast<std::int64_t>(sequence.request.value),
                      .position = sequence.first_position + offset},
                     chains_.at(sequence.request.value),
                     outputs_[static_cast<std::size_t>(layer)].data() + row * row_bytes);
  }
}

}  // namespace quire::replay
