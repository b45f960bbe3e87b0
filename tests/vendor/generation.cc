// SPDX-License-Identifier: Apache-2.0
#include "vendor/generation.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/number_formats.h"
#include "conformance/problem.h"
#include "conformance/random.h"
#include "layout/kv_rows.h"

namespace quire::testing {
namespace {

constexpr int kBlockSize = 32;
constexpr float kScale = 0.125F;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// One sequence: everything that was drawn for it.
struct Sequence {
  std::vector<float> q;              // [num_tokens, num_q_heads, head_dim]
  std::vector<float> k;              // [num_tokens, num_kv_heads, head_dim]
  std::vector<float> v;              // [num_tokens, num_kv_heads, head_dim]
  std::vector<std::int32_t> blocks;  // [blocks_per_sequence]
  std::int64_t num_tokens = 0;
  std::int64_t num_stored = 0;
};

}  // namespace

struct Generation::State {
  GenerationShape shape;
  conformance::Random random{20261115};
  std::vector<Sequence> sequences;
  AttentionBackend* holder = nullptr;
  std::unique_ptr<KvCache> cache;

  AttentionSpec spec() const {
    AttentionSpec spec;
    spec.num_q_heads = shape.num_q_heads;
    spec.num_kv_heads = shape.num_kv_heads;
    spec.head_dim = spec.value_dim = shape.head_dim;
    spec.q_dtype = spec.out_dtype = DType::kF32;
    spec.kv.dtype = shape.kv_dtype;
    spec.kv.scales = shape.scales;
    spec.kv.block_size = kBlockSize;
    return spec;
  }
  AttentionSpec spec_for(const AttentionBackend& backend) const {
    AttentionSpec result = spec();
    result.kv.layout = backend.preferred_layout(result).id;
    return result;
  }
  std::int64_t num_blocks() const { return std::ssize(sequences) * shape.blocks_per_sequence + 2; }
  std::unique_ptr<KvCache> make_cache(AttentionBackend& backend) const {
    return std::make_unique<KvCache>(backend.memory(), spec_for(backend),
                                     backend.preferred_layout(spec()),
                                     KvCache::Options{.num_blocks = num_blocks()});
  }
  std::vector<BlockCopy> all_blocks() const {
    std::vector<BlockCopy> copies;
    for (std::int32_t i = 0; i < num_blocks(); ++i) copies.push_back({i, i});
    return copies;
  }
  KvCache make_plain() const {
    return {holder->memory(), spec(), plain_layout(spec()), {.num_blocks = num_blocks()}};
  }

  void draw_token(Sequence& sequence) {
    const auto draw = [&](std::vector<float>& values, std::int64_t count, DType dtype) {
      const DType exact = is_quantized(dtype) ? DType::kF32 : dtype;
      for (std::int64_t i = 0; i < count; ++i) {
        values.push_back(conformance::round_to(exact, random.normal()));
      }
    };
    draw(sequence.q, shape.num_q_heads * shape.head_dim, DType::kF32);
    draw(sequence.k, shape.num_kv_heads * shape.head_dim, shape.kv_dtype);
    draw(sequence.v, shape.num_kv_heads * shape.head_dim, shape.kv_dtype);
    ++sequence.num_tokens;
  }

  // Exact attention of token i.
  std::vector<double> exact_row(const Sequence& sequence, std::int64_t i, std::int64_t head) const {
    const std::int64_t dim = shape.head_dim;
    const std::int64_t kv_head = head / (shape.num_q_heads / shape.num_kv_heads);
    const float* q = sequence.q.data() + (i * shape.num_q_heads + head) * dim;
    std::vector<double> scores;
    for (std::int64_t j = 0; j <= i; ++j) {
      const float* k = sequence.k.data() + (j * shape.num_kv_heads + kv_head) * dim;
      double dot = 0;
      for (std::int64_t d = 0; d < dim; ++d) dot += double{q[d]} * k[d];
      scores.push_back(kScale * dot);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& s : scores) sum += s = std::exp(s - max);
    std::vector<double> out(at(dim), 0.0);
    for (std::int64_t j = 0; j <= i; ++j) {
      const float* v = sequence.v.data() + (j * shape.num_kv_heads + kv_head) * dim;
      for (std::int64_t d = 0; d < dim; ++d) out[at(d)] += scores[at(j)] / sum * v[d];
    }
    return out;
  }
};

namespace {

// The arrays of one step: all tokens that are not stored yet.
struct Step {
  std::vector<std::int32_t> offsets = {0};
  std::vector<std::int32_t> lens;
  std::vector<std::int32_t> table;
  std::vector<std::int64_t> slots;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;

  void add(const Sequence& sequence) {
    const std::int64_t first = sequence.num_stored;
    const std::int64_t count = sequence.num_tokens - first;
    const auto append = [&](std::vector<float>& to, const std::vector<float>& from) {
      const std::int64_t row = std::ssize(from) / sequence.num_tokens;
      to.insert(to.end(), from.begin() + first * row, from.end());
    };
    append(q, sequence.q);
    append(k, sequence.k);
    append(v, sequence.v);
    for (std::int64_t i = first; i < sequence.num_tokens; ++i) {
      slots.push_back(std::int64_t{sequence.blocks[at(i / kBlockSize)]} * kBlockSize +
                      i % kBlockSize);
    }
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(count));
    lens.push_back(static_cast<std::int32_t>(sequence.num_tokens));
    table.insert(table.end(), sequence.blocks.begin(), sequence.blocks.end());
  }

  BatchView view(std::int64_t blocks_per_sequence) const {
    BatchView batch;
    batch.queries = QueryRanges::packed(offsets);
    batch.kv.lens = lens;
    batch.kv.blocks = BlockTables::padded(table, blocks_per_sequence);
    batch.kv.slots = slots;
    return batch;
  }
};

}  // namespace

Generation::Generation(const GenerationShape& shape) : state_(std::make_unique<State>()) {
  state_->shape = shape;
}
Generation::~Generation() = default;

void Generation::start(AttentionBackend& backend, const std::vector<std::int64_t>& prompt_lens) {
  State& s = *state_;
  for (const std::int64_t length : prompt_lens) {
    Sequence sequence;
    // Blocks of the sequences interleave, so that none lies in order.
    for (std::int64_t i = 0; i < s.shape.blocks_per_sequence; ++i) {
      sequence.blocks.push_back(static_cast<std::int32_t>(
          1 + (s.shape.blocks_per_sequence - 1 - i) * std::ssize(prompt_lens) +
          std::ssize(s.sequences)));
    }
    for (std::int64_t i = 0; i < length; ++i) s.draw_token(sequence);
    s.sequences.push_back(std::move(sequence));
  }
  s.holder = &backend;
  s.cache = s.make_cache(backend);
}

double Generation::step(AttentionBackend& backend) {
  State& s = *state_;
  Step step;
  for (const Sequence& sequence : s.sequences) step.add(sequence);
  const std::int64_t rows = step.offsets.back();
  const std::int64_t max_len = s.shape.blocks_per_sequence * kBlockSize;
  const auto num_sequences = std::ssize(s.sequences);
  const BatchBounds bounds{num_sequences, rows, max_len, max_len * num_sequences};
  const AttentionSpec spec = s.spec_for(backend);
  const WorkspaceBuffer workspace(backend.memory(), backend.workspace(spec, bounds));
  const auto prepared = backend.make_prepared(spec, bounds, workspace.view());
  backend.prepare(*prepared, step.view(s.shape.blocks_per_sequence));

  const std::int64_t dim = s.shape.head_dim;
  std::vector<float> out(step.q.size(), std::nanf(""));
  const auto tensor = [&](const std::vector<float>& values, std::int64_t heads) {
    return TensorView(values.data(), DType::kF32, {rows, heads, dim});
  };
  AttentionParams params;
  params.scale = kScale;
  const NewKv new_kv{tensor(step.k, s.shape.num_kv_heads), tensor(step.v, s.shape.num_kv_heads)};
  backend.attend(
      *prepared, params, tensor(step.q, s.shape.num_q_heads), {s.cache->layer(0), new_kv},
      {MutableTensorView(out.data(), DType::kF32, {rows, s.shape.num_q_heads, dim}), {}});

  double largest = 0;
  const float* got = out.data();
  for (Sequence& sequence : s.sequences) {
    for (std::int64_t i = sequence.num_stored; i < sequence.num_tokens; ++i) {
      for (std::int64_t head = 0; head < s.shape.num_q_heads; ++head) {
        for (const double want : s.exact_row(sequence, i, head)) {
          const double error = std::abs(*got++ - want);
          largest = std::isnan(error) ? INFINITY : std::max(largest, error);
        }
      }
    }
    sequence.num_stored = sequence.num_tokens;
    s.draw_token(sequence);
  }
  return largest;
}

void Generation::move_to(AttentionBackend& backend) {
  State& s = *state_;
  const KvCache plain = s.make_plain();
  s.holder->export_blocks(s.cache->layers(), plain.layers(), s.all_blocks());
  s.cache = s.make_cache(backend);
  backend.import_blocks(plain.layers(), s.cache->layers(), s.all_blocks());
  s.holder = &backend;
}

void Generation::swap_out_and_in(AttentionBackend& backend) {
  State& s = *state_;
  const KvCache host(backend.memory(), s.spec_for(backend), backend.preferred_layout(s.spec()),
                     {.num_blocks = s.num_blocks(), .on_host = true});
  backend.copy_blocks(s.cache->layers(), host.layers(), s.all_blocks());
  const std::unique_ptr<KvCache> fresh = s.make_cache(backend);
  const KvCacheView& layer = fresh->layer(0);
  std::memset(layer.k, 0xff, at(s.num_blocks() * layer.k_strides.block));
  std::memset(layer.v, 0xff, at(s.num_blocks() * layer.v_strides.block));
  // In other blocks, and back to where the tables say: source and destination never coincide.
  std::vector<BlockCopy> moved;
  for (std::int32_t i = 0; i < s.num_blocks(); ++i) {
    moved.push_back({i, static_cast<std::int32_t>((i + 1) % s.num_blocks())});
  }
  backend.copy_blocks(host.layers(), fresh->layers(), moved);
  for (Sequence& sequence : s.sequences) {
    for (std::int32_t& block : sequence.blocks) {
      block = static_cast<std::int32_t>((block + 1) % s.num_blocks());
    }
  }
  *s.cache = std::move(*fresh);
}

double Generation::stored_error(AttentionBackend& backend) {
  State& s = *state_;
  const KvCache plain = s.make_plain();
  backend.export_blocks(s.cache->layers(), plain.layers(), s.all_blocks());
  const std::int64_t dim = s.shape.head_dim;
  std::vector<float> row(at(dim));
  double largest = 0;
  for (const Sequence& sequence : s.sequences) {
    for (const KvTensor tensor : {KvTensor::kK, KvTensor::kV}) {
      const float* drawn = (tensor == KvTensor::kK ? sequence.k : sequence.v).data();
      for (std::int64_t i = 0; i < sequence.num_stored; ++i) {
        for (std::int64_t head = 0; head < s.shape.num_kv_heads; ++head) {
          load_row(plain.layer(0), tensor, sequence.blocks[at(i / kBlockSize)], head,
                   i % kBlockSize, row.data());
          for (std::int64_t d = 0; d < dim; ++d) {
            largest = std::max(largest, double{std::abs(row[at(d)] - *drawn++)});
          }
        }
      }
    }
  }
  return largest;
}

}  // namespace quire::testing
