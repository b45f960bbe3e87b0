// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/chunk.h"

#include <algorithm>

namespace quire::cpu {
namespace {

// A whole tile of 16 keys, `k` and `v` being the places of the first: loops of a known length.
void place_tile(std::int64_t block, std::int64_t lane, std::int64_t k, std::int64_t v,
                Chunk& chunk) noexcept {
  for (std::int64_t i = 0; i < kPairTile; ++i) chunk.block[lane + i] = block;
  for (std::int64_t i = 0; i < kPairTile; ++i) chunk.k[lane + i] = k + 2 * i;
  for (std::int64_t i = 0; i < kPairTile; i += 2) {
    chunk.v[lane + i] = v + i * kPairTile;
    chunk.v[lane + i + 1] = v + i * kPairTile + 1;
  }
}

// Keys of one block, side by side in a plain layout, two by two in a tiled one. `lane` is the first
// key's.
void place_run(const AttendCall& call, std::int64_t block, std::int64_t token, std::int64_t lane,
               std::int64_t end, Chunk& chunk) noexcept {
  const KvCacheView& cache = call.cache;
  const std::int64_t k = element_offset(cache, KvTensor::kK, block, 0, 0, 0);
  const std::int64_t v = element_offset(cache, KvTensor::kV, block, 0, 0, 0);
  if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
    const std::int64_t k_scale = scale_offset(cache.k_scales, block, 0, token);
    const std::int64_t v_scale = scale_offset(cache.v_scales, block, 0, token);
    for (std::int64_t i = lane; i < end; ++i) {
      chunk.k_scale[i] = k_scale + (i - lane) * cache.k_scales.strides.token;
      chunk.v_scale[i] = v_scale + (i - lane) * cache.v_scales.strides.token;
    }
  }
  if (cache.format.layout == KvLayoutId::kPlain) {
    for (std::int64_t i = lane; i < end; ++i) {
      chunk.block[i] = block;
      chunk.k[i] = k + (token + (i - lane)) * cache.k_strides.token;
      chunk.v[i] = v + (token + (i - lane)) * cache.v_strides.token;
    }
    return;
  }
  while (lane < end) {  // the keys of one tile of K
    const std::int64_t in_tile = std::min(end - lane, kPairTile - token % kPairTile);
    const std::int64_t tiled_k = k + pair_tiled_k(cache.head_dim, token, 0);
    if (in_tile == kPairTile && !cache.format.v_in_k) {
      place_tile(block, lane, tiled_k, v + pair_tiled_v(cache.format.block_size, token, 0), chunk);
    } else {
      for (std::int64_t i = 0; i < in_tile; ++i) chunk.block[lane + i] = block;
      for (std::int64_t i = 0; i < in_tile; ++i) chunk.k[lane + i] = tiled_k + 2 * i;
      if (cache.format.v_in_k) {
        for (std::int64_t i = 0; i < in_tile; ++i) chunk.v[lane + i] = v - k + tiled_k + 2 * i;
      } else {
        for (std::int64_t i = 0; i < in_tile; ++i) {
          chunk.v[lane + i] = v + pair_tiled_v(cache.format.block_size, token + i, 0);
        }
      }
    }
    token += in_tile;
    lane += in_tile;
  }
}

void leave_out(Chunk& chunk, std::int64_t lane) noexcept {
  chunk.block[lane] = 0;
  chunk.k[lane] = kAbsent;
  chunk.v[lane] = kAbsent;
}

}  // namespace

void locate(const AttendCall& call, std::int64_t sequence, const KeyRange& keys, std::int64_t width,
            Chunk& chunk) noexcept {
  chunk.width = width;
  chunk.first = keys.begin / width * width;
  chunk.begin = keys.begin - chunk.first;
  chunk.end = keys.end - chunk.first;
  for (std::int64_t lane = 0; lane < chunk.begin; ++lane) leave_out(chunk, lane);
  for (std::int64_t lane = chunk.end; lane < width; ++lane) leave_out(chunk, lane);

  // Under a tree mask a key that no query sees may lie nowhere: its table entry is not followed.
  const SequenceView view = sequence_view(call.batch, sequence);
  const bool tree = view.tree_bits != nullptr;
  const std::int64_t first_old = tree ? first_old_key_seen(call.spec.mask, view) : 0;

  chunk.complete = chunk.whole();
  const BlockTables& tables = call.batch.kv.blocks;
  const std::int64_t block_size = call.cache.format.block_size;
  std::int64_t lane = chunk.begin;
  if (!tree && tables.kind != BlockTables::Kind::kRagged) {
    const std::int32_t* block = blocks_of(tables, sequence) + keys.begin / block_size;
    std::int64_t token = keys.begin % block_size;
    while (lane < chunk.end) {
      const std::int64_t end = std::min(chunk.end, lane + block_size - token);
      place_run(call, *block++, token, lane, end, chunk);
      lane = end;
      token = 0;
    }
    return;
  }
  for (; lane < chunk.end; ++lane) {
    if (tree && !is_seen_in_tree(call.spec.mask, view, first_old, chunk.first + lane)) {
      leave_out(chunk, lane);
      chunk.complete = false;
      continue;
    }
    const std::int64_t slot = key_slot(tables, block_size, sequence, chunk.first + lane);
    place_run(call, slot / block_size, slot % block_size, lane, lane + 1, chunk);
  }
}

void Pieces::add(const Piece& piece) noexcept {
  if (piece.count == 0 || piece.bytes == 0) return;
  Piece whole = piece;
  if (piece.count > 1 && piece.stride == piece.bytes) {
    whole.bytes *= piece.count;
    whole.count = 1;
  }
  // Neighbours become one: the tokens of a block, and blocks that happen to follow each other.
  if (size_ > 0 && whole.count == 1) {
    Piece& last = pieces_[size_ - 1];
    if (last.count == 1 && last.data + last.bytes == whole.data &&
        last.head_stride == whole.head_stride) {
      last.bytes += whole.bytes;
      return;
    }
  }
  if (size_ < capacity_) pieces_[size_++] = whole;
}

void Pieces::add_head(const Pieces& first_head, std::int64_t kv_head) noexcept {
  for (int i = 0; i < first_head.size_ && size_ < capacity_; ++i) {
    const Piece& piece = first_head.pieces_[i];
    pieces_[size_] = piece;
    pieces_[size_++].data = piece.data + kv_head * piece.head_stride;
  }
}

void Pieces::add_tokens(const KvCacheView& cache, KvTensor tensor, std::int64_t offset,
                        std::int64_t tokens, const IndexRange& kv_heads) noexcept {
  const bool is_k = tensor == KvTensor::kK;
  const KvStrides& strides = is_k ? cache.k_strides : cache.v_strides;
  const std::int64_t dims = is_k ? cache.head_dim : cache.value_dim;
  const std::int64_t element_bytes = dtype_bytes(cache.format.dtype);
  const std::int64_t head_stride = strides.head * element_bytes;
  const char* data = static_cast<const char*>(is_k ? cache.k : cache.v) +
                     (offset + kv_heads.begin * strides.head) * element_bytes;
  const bool plain = cache.format.layout == KvLayoutId::kPlain;
  if (plain && strides.head == dims && strides.token == kv_heads.size() * dims) {
    // All heads, token by token.
    add({data, 1, 0, tokens * strides.token * element_bytes, head_stride});
  } else if (plain && strides.token != dims) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      add({data + i * strides.token * element_bytes, kv_heads.size(), head_stride,
           dims * element_bytes, head_stride});
    }
  } else if (is_k || plain) {
    add({data, kv_heads.size(), head_stride, tokens * dims * element_bytes, head_stride});
  } else {  // the tokens of one tile of dims after those of the other
    const std::int64_t tile = cache.format.block_size * kPairTile * element_bytes;
    add({data, kv_heads.size() * (dims / kPairTile), tile, tokens * kPairTile * element_bytes,
         head_stride});
  }
}

void Pieces::add_scales(const KvScales& scales, std::int64_t offset, std::int64_t tokens,
                        const IndexRange& kv_heads) noexcept {
  if (scales.strides.token != 1) return;  // scattered, and not of a cache that quire allocated
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(float));
  const float* data = scales.data + offset + kv_heads.begin * scales.strides.head;
  const std::int64_t head_stride = scales.strides.head * kBytes;
  add({reinterpret_cast<const char*>(data), kv_heads.size(), head_stride, tokens * kBytes,
       head_stride});
}

void Pieces::add_rows(const AttendCall& call, const TensorView& tensor, std::int64_t sequence,
                      std::int64_t kv_head, const IndexRange& rows) noexcept {
  const std::int64_t group = call.spec.head_group();
  const std::int64_t dims = tensor.shape[2];
  if (tensor.strides[1] != dims || size_ >= kMaxRowPieces) return;
  const std::int64_t element_bytes = dtype_bytes(tensor.dtype);
  const std::int64_t token = rows.begin / group;
  const std::int64_t first = (call.batch.queries.begins[sequence] + token) * tensor.strides[0] +
                             kv_head * group * tensor.strides[1];
  add({static_cast<const char*>(tensor.data) + first * element_bytes,
       (rows.end - 1) / group + 1 - token, tensor.strides[0] * element_bytes,
       group * dims * element_bytes, 0});
}

namespace {

// Calls f(lane, tokens) for every run of tokens of one block.
template <class F>
void for_runs(const Chunk& chunk, F&& f) noexcept {
  std::int64_t end = 0;
  for (std::int64_t lane = chunk.begin; lane < chunk.end; lane = end) {
    end = lane + 1;
    if (chunk.k[lane] == kAbsent) continue;
    while (end < chunk.end && chunk.k[end] != kAbsent && chunk.block[end] == chunk.block[lane]) {
      ++end;
    }
    f(lane, end - lane);
  }
}

}  // namespace

void Pieces::add_chunk(const AttendCall& call, const Chunk& chunk,
                       const IndexRange& kv_heads) noexcept {
  const KvCacheView& cache = call.cache;
  // Tokens of one block follow each other: all of its K, then all of its V.
  for_runs(chunk, [&](std::int64_t lane, std::int64_t tokens) {
    add_tokens(cache, KvTensor::kK, chunk.k[lane], tokens, kv_heads);
    if (!cache.format.v_in_k) add_tokens(cache, KvTensor::kV, chunk.v[lane], tokens, kv_heads);
    if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
      add_scales(cache.k_scales, chunk.k_scale[lane], tokens, kv_heads);
      if (!cache.format.v_in_k) {
        add_scales(cache.v_scales, chunk.v_scale[lane], tokens, kv_heads);
      }
    }
  });
}

void Pieces::add_first_head(const AttendCall& call, const Chunk& chunk, KvTensor tensor) noexcept {
  constexpr IndexRange kHead = {0, 1};
  const KvCacheView& cache = call.cache;
  const bool is_k = tensor == KvTensor::kK;
  for_runs(chunk, [&](std::int64_t lane, std::int64_t tokens) {
    if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
      add_scales(is_k ? cache.k_scales : cache.v_scales,
                 is_k ? chunk.k_scale[lane] : chunk.v_scale[lane], tokens, kHead);
    }
    add_tokens(cache, tensor, is_k ? chunk.k[lane] : chunk.v[lane], tokens, kHead);
  });
}

}  // namespace quire::cpu
