// SPDX-License-Identifier: Apache-2.0
#include "backends/onednn/tile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backends/dense/gather.h"
#include "backends/dense/mask_rows.h"
#include "backends/onednn/scores.h"
#include "base/float_rows.h"

namespace quire::onednn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows that make a product efficient; more only take more memory.
constexpr std::int64_t kMaxRows = 128;
// Of the scores of a tile, beyond which it gets fewer rows.
constexpr std::int64_t kMaxScoreBytes = 4 << 20;

std::int64_t align_up(std::int64_t size_bytes) noexcept {
  return (size_bytes + 63) / 64 * 64;
}

// The largest tile of a batch within the bounds, in each respect on its own.
struct TileExtent {
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  std::int64_t cells = 0;  // rows x keys
};

TileExtent tile_extent(const AttentionSpec& spec, const BatchBounds& bounds) noexcept {
  const std::int64_t max_keys = std::max<std::int64_t>(bounds.max_kv_len, 1);
  const auto max_queries = static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(bounds.max_tokens, 1))));
  TileExtent extent;
  extent.keys = key_bucket(max_keys);
  for (std::int64_t keys = key_bucket(1); keys <= extent.keys; keys = key_bucket(keys + 1)) {
    const std::int64_t rows = std::min(tile_queries(spec, keys), max_queries) * spec.head_group();
    extent.rows = std::max(extent.rows, rows);
    extent.cells = std::max(extent.cells, rows * keys);
  }
  return extent;
}

// Hands out parts of one allocation, or only counts.
struct Parts {
  char* memory = nullptr;
  std::int64_t used = 0;

  template <class T>
  T* take(std::int64_t size_bytes) noexcept {
    T* part = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + used);
    used += align_up(size_bytes);
    return part;
  }
};

TileScratch take_scratch(Parts& parts, const AttentionSpec& spec, DType compute,
                         const BatchBounds& bounds) noexcept {
  const TileExtent extent = tile_extent(spec, bounds);
  const std::int64_t size = dtype_bytes(compute);
  constexpr std::int64_t kFloat = sizeof(float);
  TileScratch scratch;
  TilePrimitives::Memory& memory = scratch.memory;
  memory.q = parts.take<void>(extent.rows * spec.head_dim * size);
  memory.kv = parts.take<void>(std::min(extent.keys, kChunkKeys) *
                               std::max(spec.head_dim, spec.value_dim) * size);
  memory.scores = parts.take<float>(extent.cells * kFloat);
  memory.weights = compute == DType::kF32 ? memory.scores : parts.take<void>(extent.cells * size);
  memory.out = parts.take<float>(extent.rows * spec.value_dim * kFloat);
  scratch.mask_row = parts.take<float>(extent.keys * kFloat);
  scratch.not_finite = parts.take<std::int32_t>(kChunkKeys * kFloat);
  scratch.row_max = parts.take<float>(extent.rows * kFloat);
  scratch.row_factor = parts.take<float>(extent.rows * kFloat);
  scratch.top_key = parts.take<std::int64_t>(extent.rows * std::int64_t{sizeof(std::int64_t)});
  scratch.value = parts.take<float>(spec.value_dim * kFloat);
  return scratch;
}

// One tile in progress.
struct Tile {
  const TileCall& call;
  const dense::QueryPart& queries;
  std::int64_t kv_head;
  KeyRange keys;
  const TilePrimitives& primitives;
  const dnnl::stream& stream;
  const TileScratch& scratch;

  std::int64_t group = call.spec.head_group();
  std::int64_t num_rows = (queries.end - queries.begin) * group;  // without padding
  std::int64_t row_keys = primitives.shape().row_keys;
  DType compute = primitives.shape().compute;
  dense::GatherSource source =
      dense::gather_source(call.cache, call.batch, call.spec, queries.sequence);

  std::int64_t query(std::int64_t row) const { return queries.begin + row / group; }
  std::int64_t head(std::int64_t row) const { return kv_head * group + row % group; }
  std::int64_t token(std::int64_t row) const {
    return call.batch.queries.begins[queries.sequence] + query(row);
  }
  KeyRange chunk_range(std::int64_t chunk) const {
    const std::int64_t begin = keys.begin + chunk * kChunkKeys;
    return {begin, std::min(begin + kChunkKeys, keys.end)};
  }
  std::int64_t num_chunks() const { return (keys.size() + kChunkKeys - 1) / kChunkKeys; }
};

void load_queries(const Tile& tile) {
  const TensorView& q = tile.call.q;
  const std::int64_t dims = tile.call.spec.head_dim;
  const std::int64_t size = dtype_bytes(tile.compute);
  char* rows = static_cast<char*>(tile.scratch.memory.q);
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    const std::int64_t offset = tile.token(row) * q.strides[0] + tile.head(row) * q.strides[1];
    if (q.dtype == tile.compute) {
      std::memcpy(rows + row * dims * size, static_cast<const char*>(q.data) + offset * size,
                  static_cast<std::size_t>(dims * size));
    } else {
      load_floats(q.dtype, q.data, offset, dims, reinterpret_cast<float*>(rows) + row * dims);
    }
  }
  const std::int64_t padding = tile.primitives.shape().num_rows - tile.num_rows;
  std::memset(rows + tile.num_rows * dims * size, 0,
              static_cast<std::size_t>(padding * dims * size));
}

// S = q.k, still without scale and masks.
void multiply_keys(const Tile& tile) {
  for (std::int64_t chunk = 0; chunk < tile.num_chunks(); ++chunk) {
    const dense::DenseRows rows{.dtype = tile.compute,
                                .data = tile.scratch.memory.kv,
                                .num_rows = tile.primitives.chunk_keys(chunk),
                                .stride = tile.call.spec.head_dim};
    {
      const dense::GatherTimer timer(tile.scratch.gather_seconds);
      // A key that is not finite stays where its own column ends.
      dense::gather_rows(tile.source, KvTensor::kK, tile.kv_head, tile.chunk_range(chunk), rows,
                         nullptr);
    }
    tile.primitives.compute_scores(tile.stream, tile.scratch.memory, chunk);
  }
}

// Scale, softcap, masks, ALiBi and bias; then what the end of a row needs to know.
void mask_scores(const Tile& tile) {
  const AttentionParams& params = tile.call.params;
  const dense::MaskRows masks{.mask = tile.call.spec.mask,
                              .alignment = tile.call.spec.alignment,
                              .params = params,
                              .sequence = tile.source.sequence,
                              .s = tile.queries.sequence};
  float* scores = tile.scratch.memory.scores;
  const std::int64_t num_cells = tile.primitives.shape().num_rows * tile.row_keys;
  float scale = params.scale;
  if (params.softcap > 0) {
    scale_scores(scores, num_cells, params.scale / params.softcap);
    tile.primitives.apply_tanh(tile.stream, tile.scratch.memory);
    scale = params.softcap;
  }
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    ScoreRow s{.scores = scores + row * tile.row_keys,
               .num_keys = tile.keys.size(),
               .row_keys = tile.row_keys};
    if (masks.is_range()) {
      const KeyRange seen = dense::row_range(masks, tile.query(row), tile.keys);
      keep_range(s, scale, {seen.begin - tile.keys.begin, seen.end - tile.keys.begin});
    } else {
      dense::fill_mask_row(masks, tile.head(row), tile.query(row), tile.keys,
                           tile.scratch.mask_row);
      add_mask(s, scale, tile.scratch.mask_row);
    }
    tile.scratch.row_max[row] = row_maximum(s);
    tile.scratch.top_key[row] = close_row(s, tile.scratch.row_max[row]);
  }
  // Rows of padding have weights that nobody reads, but no NaN that would slow them.
  std::fill(scores + tile.num_rows * tile.row_keys, scores + num_cells, 0.0F);
}

float weight_at(const Tile& tile, std::int64_t row, std::int64_t key) {
  return load_float(tile.compute, tile.scratch.memory.weights, row * tile.row_keys + key);
}

// Adds values that gather_rows left out because they are not finite, to the rows whose weight for
// them is not 0.
void add_values_not_finite(const Tile& tile, KeyRange chunk, std::int64_t num_found) {
  const std::int64_t dims = tile.call.spec.value_dim;
  for (std::int64_t n = 0; n < num_found; ++n) {
    const std::int64_t j = chunk.begin + tile.scratch.not_finite[n];
    dense::load_key(tile.source, KvTensor::kV, tile.kv_head, j, tile.scratch.value);
    for (std::int64_t row = 0; row < tile.num_rows; ++row) {
      const float weight = weight_at(tile, row, j - tile.keys.begin);
      if (weight == 0) continue;
      float* out = tile.scratch.memory.out + row * dims;
      for (std::int64_t d = 0; d < dims; ++d) out[d] += weight * tile.scratch.value[d];
    }
  }
}

// O = P x V.
void multiply_values(const Tile& tile) {
  for (std::int64_t chunk = 0; chunk < tile.num_chunks(); ++chunk) {
    const KeyRange keys = tile.chunk_range(chunk);
    const dense::DenseRows rows{.dtype = tile.compute,
                                .data = tile.scratch.memory.kv,
                                .num_rows = tile.primitives.chunk_keys(chunk),
                                .stride = tile.call.spec.value_dim};
    std::int64_t num_found = 0;
    {
      const dense::GatherTimer timer(tile.scratch.gather_seconds);
      num_found = dense::gather_rows(tile.source, KvTensor::kV, tile.kv_head, keys, rows,
                                     tile.scratch.not_finite);
    }
    tile.primitives.add_values(tile.stream, tile.scratch.memory, chunk);
    add_values_not_finite(tile, keys, num_found);
  }
}

void store_lse(const AttentionOutput& output, std::int64_t token, std::int64_t head, float lse) {
  if (!output.lse.present()) return;
  const std::int64_t offset = token * output.lse.strides[0] + head * output.lse.strides[1];
  static_cast<float*>(output.lse.data)[offset] = lse;
}

// The weight of the largest score is 1 / sum, so lse = max + log(sum) follows from it: it replaces
// the maximum. 16-bit weights are those of the sum, exp(S - max): of them the largest, which counts
// most, is 1 and loses nothing when it is rounded. The sum divides at the end.
void finish_weights(const Tile& tile) {
  const bool needs_lse = tile.call.output.lse.present() || !tile.call.params.sinks.empty();
  const bool rounds = tile.compute != DType::kF32;
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    float* weights = tile.scratch.memory.scores + row * tile.row_keys;
    const float top = weights[tile.scratch.top_key[row]];
    float& lse = tile.scratch.row_max[row];
    if (needs_lse && lse != -kInfinity && !std::isnan(lse)) lse -= std::log(top);
    tile.scratch.row_factor[row] = rounds ? top : 1.0F;
    if (!rounds) continue;
    const ScoreRow score_row{
        .scores = weights, .num_keys = tile.keys.size(), .row_keys = tile.row_keys};
    round_weights(score_row, 1.0F / top, tile.compute, tile.scratch.memory.weights, row);
  }
  if (!rounds) return;
  const std::int64_t padding = tile.primitives.shape().num_rows - tile.num_rows;
  const std::int64_t row_bytes = tile.row_keys * dtype_bytes(tile.compute);
  std::memset(static_cast<char*>(tile.scratch.memory.weights) + tile.num_rows * row_bytes, 0,
              static_cast<std::size_t>(padding * row_bytes));
}

// Sinks, one rounding, and out.
void store_rows(const Tile& tile) {
  const AttentionOutput& output = tile.call.output;
  const ArrayView<float> sinks = tile.call.params.sinks;
  const std::int64_t dims = tile.call.spec.value_dim;
  for (std::int64_t row = 0; row < tile.num_rows; ++row) {
    float* out = tile.scratch.memory.out + row * dims;
    const float lse = tile.scratch.row_max[row];  // or the largest score, where nobody asks for it
    if (lse == -kInfinity) {
      std::fill_n(out, dims, 0.0F);
    } else if (std::isnan(lse)) {
      std::fill_n(out, dims, lse);
    } else {
      float factor = tile.scratch.row_factor[row];
      if (!sinks.empty()) factor /= 1.0F + std::exp(sinks[tile.head(row)] - lse);
      for (std::int64_t d = 0; d < dims; ++d) out[d] *= factor;
    }
    const std::int64_t offset =
        tile.token(row) * output.out.strides[0] + tile.head(row) * output.out.strides[1];
    store_floats(output.out.dtype, output.out.data, offset, dims, out);
    store_lse(output, tile.token(row), tile.head(row), lse);
  }
}

// No key: out 0, lse -inf.
void store_empty(const TileCall& call, const dense::QueryPart& queries, std::int64_t kv_head) {
  const std::int64_t group = call.spec.head_group();
  const MutableTensorView& out = call.output.out;
  const std::int64_t size = dtype_bytes(out.dtype);
  for (std::int64_t i = queries.begin; i < queries.end; ++i) {
    const std::int64_t token = call.batch.queries.begins[queries.sequence] + i;
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const std::int64_t offset = token * out.strides[0] + head * out.strides[1];
      std::memset(static_cast<char*>(out.data) + offset * size, 0,
                  static_cast<std::size_t>(call.spec.value_dim * size));
      store_lse(call.output, token, head, -kInfinity);
    }
  }
}

}  // namespace

std::int64_t tile_queries(const AttentionSpec& spec, std::int64_t kv_len) noexcept {
  const std::int64_t row_bytes =
      key_bucket(std::max<std::int64_t>(kv_len, 1)) * std::int64_t{sizeof(float)};
  const std::int64_t rows = std::min(kMaxRows, kMaxScoreBytes / row_bytes);
  const std::int64_t queries = std::max<std::int64_t>(rows / spec.head_group(), 1);
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(queries)));
}

TilePlan plan_tile(const AttentionSpec& spec, DType compute, const SequenceView& sequence,
                   const dense::QueryPart& queries) noexcept {
  TilePlan plan;
  plan.keys = keys_seen(spec.mask, spec.alignment, sequence, queries.begin, queries.end);
  plan.keys.end = std::min(plan.keys.end, sequence.kv_len);
  if (plan.keys.empty()) return plan;
  const auto num_queries = static_cast<std::uint64_t>(queries.end - queries.begin);
  plan.shape = {.compute = compute,
                .head_dim = spec.head_dim,
                .value_dim = spec.value_dim,
                .num_rows = static_cast<int>(std::bit_ceil(num_queries)) * spec.head_group(),
                .row_keys = key_bucket(plan.keys.size()),
                .softcap = spec.features.softcap};
  return plan;
}

std::int64_t tile_scratch_bytes(const AttentionSpec& spec, DType compute,
                                const BatchBounds& bounds) noexcept {
  Parts parts;
  take_scratch(parts, spec, compute, bounds);
  return parts.used;
}

TileScratch tile_scratch_at(void* memory, const AttentionSpec& spec, DType compute,
                            const BatchBounds& bounds) noexcept {
  Parts parts{.memory = static_cast<char*>(memory)};
  return take_scratch(parts, spec, compute, bounds);
}

void attend_tile(const TileCall& call, const dense::QueryPart& queries, std::int64_t kv_head,
                 const TilePlan& plan, const TilePrimitives* primitives, const dnnl::stream& stream,
                 const TileScratch& scratch) {
  if (plan.keys.empty()) {
    store_empty(call, queries, kv_head);
    return;
  }
  const Tile tile{.call = call,
                  .queries = queries,
                  .kv_head = kv_head,
                  .keys = plan.keys,
                  .primitives = *primitives,
                  .stream = stream,
                  .scratch = scratch};
  load_queries(tile);
  multiply_keys(tile);
  mask_scores(tile);
  primitives->compute_weights(stream, scratch.memory);
  finish_weights(tile);
  multiply_values(tile);
  store_rows(tile);
}

}  // namespace quire::onednn
