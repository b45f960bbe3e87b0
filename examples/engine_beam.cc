// SPDX-License-Identifier: Apache-2.0
// Parallel sampling and beam search on an Engine: a request forks, its blocks are shared, and a
// branch copies a block only when it writes into one that others still read.
//
// The "model" is two layers of attention whose Q, K and V are looked up by token and position, and
// fixed vectors that turn the last output into scores of a vocabulary of 16. At the end the best
// beam is scored once more as a prompt of its own: the two scores must agree.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "quire/engine.h"
#include "quire/registry.h"

namespace {

using namespace quire;

constexpr int kVocabulary = 16;
constexpr int kNumHeads = 4;
constexpr int kHeadDim = 16;
constexpr int kNumLayers = 2;
constexpr int kMaxTokens = 64;

// A number in [-1, 1) that depends on all three.
float weight(std::uint64_t what, std::uint64_t row, std::uint64_t column) {
  std::uint64_t hash = (what * 31 + row) * 0x9E3779B97F4A7C15ULL ^ column * 0xBF58476D1CE4E5B9ULL;
  hash = (hash ^ (hash >> 31)) * 0x94D049BB133111EBULL;
  return static_cast<float>(hash >> 40) / static_cast<float>(1 << 23) - 1.0F;
}

class Model {
 public:
  Model() : engine_(make_backend("cpu"), engine_options()) {}
  Engine& engine() { return engine_; }

  StepResult step() {
    return engine_.step(
        [this](int layer, const ScheduledBatch& batch) { return qkv(layer, batch); },
        [this](int) { return output(); });
  }

  // Log-probabilities of the token that follows a row of the last step.
  std::vector<double> log_probabilities(std::int64_t row) const {
    std::vector<double> logits(kVocabulary, 0.0);
    const float* out = out_.data() + row * kNumHeads * kHeadDim;
    for (int token = 0; token < kVocabulary; ++token) {
      for (int i = 0; i < kNumHeads * kHeadDim; ++i) {
        logits[static_cast<std::size_t>(token)] +=
            out[i] * weight(99, static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(i));
      }
    }
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    for (double& logit : logits) logit -= std::log(sum);
    return logits;
  }

 private:
  static EngineOptions engine_options() {
    EngineOptions options;
    AttentionSpec spec;
    spec.num_q_heads = spec.num_kv_heads = kNumHeads;
    spec.head_dim = spec.value_dim = kHeadDim;
    spec.q_dtype = spec.out_dtype = spec.kv.dtype = DType::kF32;
    options.groups = {{.spec = spec}};
    EngineLayer layer;
    layer.params.scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim));
    options.layers.assign(kNumLayers, layer);
    options.blocks.pools = {{.num_blocks = 65}};
    options.scheduler.max_tokens = kMaxTokens;
    options.scheduler.max_sequences = 16;
    return options;
  }

  void fill(std::vector<float>& data, int what, const ScheduledBatch& batch) const {
    data.clear();
    for (std::size_t row = 0; row < batch.tokens().size(); ++row) {
      const auto place = static_cast<std::uint64_t>(batch.positions()[row]) * kVocabulary +
                         static_cast<std::uint64_t>(batch.tokens()[row]);
      for (int i = 0; i < kNumHeads * kHeadDim; ++i) {
        data.push_back(
            weight(static_cast<std::uint64_t>(what), place, static_cast<std::uint64_t>(i)));
      }
    }
  }

  Qkv qkv(int layer, const ScheduledBatch& batch) {
    num_rows_ = batch.num_tokens();
    fill(q_, 3 * layer, batch);
    fill(k_, 3 * layer + 1, batch);
    fill(v_, 3 * layer + 2, batch);
    if (layer > 0) {  // what the layer before has seen goes on
      for (std::size_t i = 0; i < q_.size(); ++i) q_[i] += out_[i];
    }
    const auto view = [this](const std::vector<float>& data) {
      return TensorView(data.data(), DType::kF32, {num_rows_, kNumHeads, kHeadDim});
    };
    Qkv input;
    input.q = view(q_);
    input.k = view(k_);
    input.v = view(v_);
    return input;
  }

  AttentionOutput output() {
    out_.resize(static_cast<std::size_t>(num_rows_ * kNumHeads * kHeadDim));
    AttentionOutput where;
    where.out = MutableTensorView(out_.data(), DType::kF32, {num_rows_, kNumHeads, kHeadDim});
    return where;
  }

  Engine engine_;
  std::int64_t num_rows_ = 0;
  std::vector<float> q_, k_, v_, out_;  // [num_rows, kNumHeads, kHeadDim]
};

struct Branch {
  std::vector<Token> tokens;  // after the prompt
  double score = 0;           // sum of log-probabilities
};

void print(const char* name, const Branch& branch) {
  std::printf("%s %8.4f ", name, branch.score);
  for (const Token token : branch.tokens) std::printf(" %2d", token);
  std::printf("\n");
}

// The probability that a random number in [0, 1) chooses.
Token sample(const std::vector<double>& log_probabilities, double random) {
  Token token = 0;
  for (; token + 1 < kVocabulary; ++token) {
    random -= std::exp(log_probabilities[static_cast<std::size_t>(token)]);
    if (random < 0) break;
  }
  return token;
}

// `width` continuations of one prompt, each drawn on its own.
void parallel_sampling(Model& model, const std::vector<Token>& prompt, int width, int length) {
  Engine& engine = model.engine();
  std::map<RequestId, Branch> branches;
  branches[engine.submit({.prompt = engine.make_prompt(prompt), .max_new_tokens = length})];
  std::uint64_t num_draws = 0;
  const auto draw = [&](RequestId id, const std::vector<double>& log_probabilities) {
    const Token token = sample(log_probabilities, (weight(7, ++num_draws, 0) + 1) / 2);
    branches[id].tokens.push_back(token);
    branches[id].score += log_probabilities[static_cast<std::size_t>(token)];
    engine.extend(id, token);
  };
  while (engine.num_unfinished() > 0) {
    const StepResult result = model.step();
    for (const ReadyRequest& ready : result.ready) {
      const std::vector<double> log_probabilities = model.log_probabilities(ready.row);
      while (static_cast<int>(branches.size()) < width) {  // when the prompt is computed
        draw(engine.fork(ready.id), log_probabilities);
      }
      draw(ready.id, log_probabilities);
    }
  }
  for (const auto& [id, branch] : branches) print("sample", branch);
}

// The best continuations of `width` kept at a time.
std::vector<Branch> beam_search(Model& model, const std::vector<Token>& prompt, int width,
                                int length) {
  Engine& engine = model.engine();
  std::map<RequestId, Branch> beams;
  beams[engine.submit({.prompt = engine.make_prompt(prompt), .max_new_tokens = length + 1})];
  for (int depth = 0; depth < length;) {
    const StepResult result = model.step();
    if (result.ready.size() < beams.size()) continue;  // the prompt is not computed yet
    struct Candidate {
      double score;
      RequestId parent;
      Token token;
    };
    std::vector<Candidate> candidates;
    for (const ReadyRequest& ready : result.ready) {
      const std::vector<double> next = model.log_probabilities(ready.row);
      for (Token token = 0; token < kVocabulary; ++token) {
        const double score = beams[ready.id].score + next[static_cast<std::size_t>(token)];
        candidates.push_back({score, ready.id, token});
      }
    }
    std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::score);
    candidates.resize(std::min<std::size_t>(candidates.size(), static_cast<std::size_t>(width)));

    std::map<RequestId, Branch> next_beams;
    for (const Candidate& candidate : candidates) {
      Branch branch = beams[candidate.parent];
      branch.tokens.push_back(candidate.token);
      branch.score = candidate.score;
      // The first child goes on in the parent's place, the others share its blocks.
      const bool is_first = !next_beams.contains(candidate.parent);
      next_beams[is_first ? candidate.parent : engine.fork(candidate.parent)] = branch;
    }
    for (const auto& [id, beam] : beams) {
      if (!next_beams.contains(id)) engine.finish(id);
    }
    for (const auto& [id, beam] : next_beams) engine.extend(id, beam.tokens.back());
    beams = std::move(next_beams);
    ++depth;
  }
  std::vector<Branch> best;
  for (const auto& [id, beam] : beams) {
    best.push_back(beam);
    engine.finish(id);
  }
  std::ranges::sort(best, std::ranges::greater(), &Branch::score);
  return best;
}

// The same tokens as a request of their own, which is told what comes next.
double score_alone(Model& model, const std::vector<Token>& prompt,
                   const std::vector<Token>& tokens) {
  Engine& engine = model.engine();
  engine.reset_prefix_cache();
  const auto length = static_cast<std::int64_t>(tokens.size());
  engine.submit({.prompt = engine.make_prompt(prompt), .max_new_tokens = length});
  double score = 0;
  for (std::size_t i = 0; engine.num_unfinished() > 0;) {
    const StepResult result = model.step();
    for (const ReadyRequest& ready : result.ready) {
      score += model.log_probabilities(ready.row)[static_cast<std::size_t>(tokens[i])];
      engine.extend(ready.id, tokens[i++]);
    }
  }
  return score;
}

}  // namespace

int main() {
  Model model;
  std::vector<Token> prompt;
  for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<Token>(i * i % kVocabulary));

  parallel_sampling(model, prompt, 4, 12);
  const std::vector<Branch> beams = beam_search(model, prompt, 4, 12);
  for (const Branch& beam : beams) print("beam  ", beam);
  const BlockStats stats = model.engine().block_manager().stats();
  std::printf("%lld blocks copied on write\n", static_cast<long long>(stats.num_copies));

  const double alone = score_alone(model, prompt, beams[0].tokens);
  const bool agrees = std::abs(alone - beams[0].score) < 1e-4;
  std::printf("best beam on its own %8.4f: %s\n", alone, agrees ? "agrees" : "DIFFERS");
  return agrees && stats.num_copies > 0 ? 0 : 1;
}
