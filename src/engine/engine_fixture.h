// SPDX-License-Identifier: Apache-2.0
// For tests: an engine under the toy model. Every row of every layer of every step is compared with
// plain attention over its request alone, and all state is validated.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/toy_model.h"
#include "quire/engine.h"
#include "quire/registry.h"

namespace quire::testing {

inline AttentionSpec toy_spec(std::int64_t window_left = -1) {
  AttentionSpec spec;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 8;
  spec.value_dim = 6;
  spec.q_dtype = spec.out_dtype = spec.kv.dtype = DType::kF32;
  spec.kv.block_size = 4;
  spec.mask.window_left = window_left;
  spec.features.softcap = true;
  return spec;
}

inline EngineLayer toy_layer(int group, float scale, float softcap = 0) {
  EngineLayer layer;
  layer.group = group;
  layer.params.scale = scale;
  layer.params.softcap = softcap;
  return layer;
}

// Layers of full attention alone, each with its own parameters.
inline EngineOptions toy_options(std::int64_t num_blocks, std::int64_t num_host_blocks = 0) {
  EngineOptions options;
  options.groups = {{.spec = toy_spec()}};
  options.layers = {toy_layer(0, 0.3F), toy_layer(0, 0.5F, 2.0F)};
  options.blocks.block_size = 4;
  options.blocks.validate_interval = 1;
  options.blocks.pools = {{.num_blocks = num_blocks + 1,
                           .num_host_blocks = num_host_blocks == 0 ? 0 : num_host_blocks + 1}};
  options.scheduler.max_tokens = 16;
  options.scheduler.max_sequences = 4;
  return options;
}

// A second group with a window, between the layers of the first.
inline void add_windowed_group(EngineOptions& options, std::int64_t num_blocks) {
  options.groups.push_back({.spec = toy_spec(5), .pool = 1});
  options.layers.insert(options.layers.begin() + 1, toy_layer(1, 0.4F));
  BlockPoolOptions pool = options.blocks.pools[0];
  pool.num_blocks = num_blocks + 1;
  options.blocks.pools.push_back(pool);
}

// A last group that looks at an encoder.
inline void add_cross_group(EngineOptions& options, std::int64_t num_blocks) {
  AttentionSpec spec = toy_spec();
  spec.alignment = Alignment::kUnaligned;
  spec.mask = {.causal = false};
  BlockPoolOptions pool = options.blocks.pools[0];
  pool.num_blocks = num_blocks + 1;
  options.groups.push_back({.spec = spec, .pool = static_cast<int>(options.blocks.pools.size())});
  options.blocks.pools.push_back(pool);
  options.layers.push_back(toy_layer(static_cast<int>(options.groups.size()) - 1, 0.4F));
}

// Floats on the host and where a backend computes.
class ToyTensor {
 public:
  explicit ToyTensor(DeviceMemory& memory) : memory_(&memory) {}
  ~ToyTensor() { memory_->free(device_); }
  ToyTensor(ToyTensor&& other) noexcept
      : host(std::move(other.host)),
        memory_(other.memory_),
        device_(std::exchange(other.device_, nullptr)),
        capacity_(other.capacity_) {}
  ToyTensor& operator=(ToyTensor&&) = delete;

  std::vector<float> host;

  // `host` as a tensor on the device, copied there by the stream.
  MutableTensorView upload(std::int64_t num_rows, int num_heads, int num_dims, Stream stream) {
    const std::int64_t size_bytes = std::ssize(host) * 4;
    if (size_bytes > capacity_) {
      memory_->synchronize(stream);
      memory_->free(device_);
      device_ = memory_->allocate(2 * size_bytes);
      capacity_ = 2 * size_bytes;
    }
    if (size_bytes > 0) memory_->copy_to_device(device_, host.data(), size_bytes, stream);
    return MutableTensorView(device_, DType::kF32, {num_rows, num_heads, num_dims},
                             memory_->device());
  }
  void download(Stream stream) {
    if (!host.empty()) memory_->copy_to_host(host.data(), device_, std::ssize(host) * 4, stream);
  }

 private:
  DeviceMemory* memory_;
  void* device_ = nullptr;
  std::int64_t capacity_ = 0;
};

class EngineFixture {
 public:
  EngineFixture(const std::string& backend, const EngineOptions& options)
      : EngineFixture(make_backend(backend, {.num_threads = 2, .isa = {}}), options) {}
  EngineFixture(std::unique_ptr<AttentionBackend> backend, const EngineOptions& options)
      : memory_(backend->memory()), options_(options), engine(std::move(backend), options) {
    for (std::size_t i = 0; i < options.layers.size(); ++i) layers_.emplace_back(memory_);
  }
  ~EngineFixture() { memory_.synchronize(options_.stream); }

 private:
  DeviceMemory& memory_;  // of the engine's backend
  EngineOptions options_;

 public:
  Engine engine;
  std::map<RequestId, ToyRequest> requests;  // alive
  std::map<RequestId, ToyRequest> ended;
  std::map<RequestId, FinishedRequest> finished;
  StepResult result;
  std::int64_t num_rows_compared = 0;
  bool compares = true;                                 // which waits for the device
  int throw_in_layer = -1;                              // the callback throws there, once
  std::function<void(const ScheduledBatch&)> on_batch;  // sees every batch that computes
  // Takes the steps, by calling what it is given; none: it is called once.
  std::function<StepResult(const std::function<StepResult()>&)> take_step;

  RequestId submit(const std::vector<Token>& tokens, std::int64_t max_new_tokens,
                   std::int32_t priority = 0, std::int64_t num_cross_tokens = 0) {
    const RequestId id = engine.submit({.prompt = engine.make_prompt(tokens),
                                        .max_new_tokens = max_new_tokens,
                                        .priority = priority,
                                        .num_cross_tokens = num_cross_tokens});
    max_new_[id] = max_new_tokens;
    num_prompt_[id] = std::ssize(tokens);
    requests[id] = {.tokens = tokens,
                    .encoder = static_cast<std::int64_t>(id.value),
                    .num_cross_tokens = num_cross_tokens};
    return id;
  }

  RequestId fork(RequestId id) {
    const RequestId child = engine.fork(id);
    requests[child] = requests.at(id);
    max_new_[child] = max_new_.at(id);
    num_prompt_[child] = num_prompt_.at(id);
    return child;
  }

  void extend(RequestId id, Token token) { extend(id, std::vector<Token>{token}, {}); }
  void extend(RequestId id, const std::vector<Token>& tokens, const std::vector<Token>& drafts) {
    engine.extend(id, tokens, drafts);
    ToyRequest& request = requests.at(id);
    request.tokens.insert(request.tokens.end(), tokens.begin(), tokens.end());
    drafts_[id] = drafts;
  }

  void step_without_tokens() {
    const auto step = [this] {
      return engine.step(
          [this](int layer, const ScheduledBatch& batch) { return qkv(layer, batch); },
          [this](int layer) { return output(layer); });
    };
    result = take_step ? take_step(step) : step();
    if (result.num_tokens > 0 && compares) compare_layers();
    engine.scheduler().validate();
    engine.block_manager().validate();
    for (const FinishedRequest& end : result.finished) {
      EXPECT_TRUE(finished.emplace(end.id, end).second) << end.id.value << " ended twice";
      ended.insert(requests.extract(end.id));
    }
  }

  // Then a token for everyone who is ready: a function of what the request has so far.
  void step() {
    step_without_tokens();
    for (const ReadyRequest& ready : result.ready) {
      extend(ready.id, next_token(requests.at(ready.id).tokens));
    }
  }

  static Token next_token(const std::vector<Token>& tokens) {
    return static_cast<Token>((tokens.back() * 31 + std::ssize(tokens)) % 97);
  }

  // Then for everyone who is ready as many tokens as its drafts have got right and one more, and
  // the drafts that `guess` makes of what it has then.
  using Guess = std::function<std::vector<Token>(const std::vector<Token>&)>;
  void step_with_drafts(const Guess& guess) {
    step_without_tokens();
    for (const ReadyRequest& ready : result.ready) {
      const std::vector<Token> drafts = drafts_[ready.id];
      std::vector<Token> all = requests.at(ready.id).tokens;
      std::vector<Token> tokens;
      const std::int64_t left = max_new_.at(ready.id) - num_new(ready.id);
      do {
        tokens.push_back(next_token(all));
        all.push_back(tokens.back());
      } while (std::ssize(tokens) <= ready.num_drafts && std::ssize(tokens) < left &&
               tokens.back() == drafts[tokens.size() - 1]);
      extend(ready.id, tokens, guess(all));
    }
  }

  bool run(int max_steps = 2000) {
    while (engine.num_unfinished() > 0 && max_steps-- > 0) step();
    step();
    return engine.num_unfinished() == 0;
  }

 private:
  std::int64_t num_new(RequestId id) const {
    return std::ssize(requests.at(id).tokens) - num_prompt_.at(id);
  }

  const AttentionSpec& spec_of(int layer) const {
    const EngineLayer& options = options_.layers[static_cast<std::size_t>(layer)];
    return options_.groups[static_cast<std::size_t>(options.group)].spec;
  }

  void fill(std::vector<float>& data, char tensor, int layer, int num_heads, int num_dims) {
    const bool is_cross = tensor != 'q' && spec_of(layer).alignment == Alignment::kUnaligned;
    data.clear();
    const auto add_row = [&](std::int64_t token, std::int64_t position) {
      for (int head = 0; head < num_heads; ++head) {
        for (int dim = 0; dim < num_dims; ++dim) {
          data.push_back(toy_value({tensor, layer, token, position, head, dim}));
        }
      }
    };
    for (const ScheduledSequence& sequence : sequences_) {
      const ToyRequest& request = seen_.at(sequence.request);
      const std::int64_t first = sequence.first_position;
      for (std::int64_t i = 0; !is_cross && i < sequence.num_tokens; ++i) {
        add_row(request.tokens[static_cast<std::size_t>(first + i)], first + i);
      }
      for (std::int64_t i = 0; is_cross && i < sequence.num_cross_rows; ++i) {
        add_row(i, request.encoder);
      }
    }
  }

  Qkv qkv(int layer, const ScheduledBatch& batch) {
    if (layer == 0) take(batch);
    if (layer == throw_in_layer) {
      throw_in_layer = -1;
      throw std::runtime_error("the model failed");
    }
    const AttentionSpec& spec = spec_of(layer);
    const bool is_cross = spec.alignment == Alignment::kUnaligned;
    const std::int64_t num_new = is_cross ? batch.num_cross_rows() : batch.num_tokens();
    LayerTensors& tensors = layers_[static_cast<std::size_t>(layer)];
    fill(tensors.q.host, 'q', layer, spec.num_q_heads, spec.head_dim);
    fill(tensors.k.host, 'k', layer, spec.num_kv_heads, spec.head_dim);
    fill(tensors.v.host, 'v', layer, spec.num_kv_heads, spec.value_dim);
    const Stream stream = options_.stream;
    Qkv input;
    input.q = tensors.q.upload(batch.num_tokens(), spec.num_q_heads, spec.head_dim, stream);
    if (num_new == 0) return input;
    input.k = tensors.k.upload(num_new, spec.num_kv_heads, spec.head_dim, stream);
    input.v = tensors.v.upload(num_new, spec.num_kv_heads, spec.value_dim, stream);
    return input;
  }

  void take(const ScheduledBatch& batch) {
    sequences_.assign(batch.sequences().begin(), batch.sequences().end());
    for (const ScheduledSequence& sequence : sequences_) {
      ToyRequest& request = seen_[sequence.request];
      request = requests.at(sequence.request);
      if (sequence.num_drafts > 0) {
        const std::vector<Token>& drafts = drafts_.at(sequence.request);
        EXPECT_EQ(std::ssize(request.tokens),
                  sequence.first_position + sequence.num_tokens - sequence.num_drafts);
        request.tokens.insert(request.tokens.end(), drafts.begin(),
                              drafts.begin() + sequence.num_drafts);
      }
      for (std::int64_t i = 0; i < sequence.num_tokens; ++i) {
        const auto row = static_cast<std::size_t>(sequence.first_row + i);
        EXPECT_EQ(batch.positions()[row], sequence.first_position + i);
        EXPECT_EQ(batch.tokens()[row],
                  request.tokens.at(static_cast<std::size_t>(sequence.first_position + i)));
      }
    }
    num_tokens_ = batch.num_tokens();
    if (on_batch) on_batch(batch);
  }

  AttentionOutput output(int layer) {
    const AttentionSpec& spec = spec_of(layer);
    ToyTensor& out = layers_[static_cast<std::size_t>(layer)].out;
    out.host.assign(static_cast<std::size_t>(num_tokens_ * spec.num_q_heads * spec.value_dim), NAN);
    AttentionOutput where;
    where.out = out.upload(num_tokens_, spec.num_q_heads, spec.value_dim, options_.stream);
    return where;
  }

  void compare_layers() {
    for (LayerTensors& tensors : layers_) tensors.out.download(options_.stream);
    memory_.synchronize(options_.stream);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) compare(static_cast<int>(layer));
  }

  void compare(int layer) {
    const AttentionSpec& spec = spec_of(layer);
    const ToyLayer toy{.index = layer,
                       .spec = spec,
                       .params = options_.layers[static_cast<std::size_t>(layer)].params};
    const std::size_t row_size =
        static_cast<std::size_t>(spec.num_q_heads) * static_cast<std::size_t>(spec.value_dim);
    for (const ScheduledSequence& sequence : sequences_) {
      const ToyRequest& request = seen_.at(sequence.request);
      for (std::int64_t i = 0; i < sequence.num_tokens; ++i) {
        const std::int64_t position = sequence.first_position + i;
        const std::vector<double> expected = plain_attention(toy, request, position);
        const float* row = layers_[static_cast<std::size_t>(layer)].out.host.data() +
                           static_cast<std::size_t>(sequence.first_row + i) * row_size;
        double error = 0;
        for (std::size_t j = 0; j < row_size; ++j) {
          error = std::max(error, std::abs(expected[j] - static_cast<double>(row[j])));
          if (std::isnan(row[j])) error = INFINITY;
        }
        EXPECT_LT(error, 2e-6) << "request " << sequence.request.value << ", layer " << layer
                               << ", position " << position;
        ++num_rows_compared;
      }
    }
  }

  struct LayerTensors {
    explicit LayerTensors(DeviceMemory& memory) : q(memory), k(memory), v(memory), out(memory) {}
    ToyTensor q;
    ToyTensor k;
    ToyTensor v;
    ToyTensor out;
  };

  std::map<RequestId, std::vector<Token>> drafts_;  // given with the last tokens
  std::map<RequestId, std::int64_t> max_new_;
  std::map<RequestId, std::int64_t> num_prompt_;
  std::vector<ScheduledSequence> sequences_;  // of the batch under way
  std::map<RequestId, ToyRequest> seen_;      // as they are in it, with drafts
  std::int64_t num_tokens_ = 0;
  std::vector<LayerTensors> layers_;
};

}  // namespace quire::testing
