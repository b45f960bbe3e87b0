// SPDX-License-Identifier: Apache-2.0
#include "opaque_backend/opaque_record.h"

#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "base/check.h"
#include "layout/kv_offset.h"
#include "layout/kv_rows.h"

namespace quire::testing {
namespace {

constexpr std::int64_t kHeaderBytes = 8;
constexpr std::int64_t kAlignment = 256;  // more than any other layout asks for
constexpr std::int64_t kGapBytes = 3;     // between K and V: opaque bytes need no alignment

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

bool has_own_scales(const KvFormat& format) {
  return format.scales == ScaleGranularity::kPerTokenHead;
}

// Bytes of the codes and scales of K or V of one block.
std::int64_t stored_bytes(const KvFormat& format, std::int64_t num_heads, std::int64_t dims) {
  const std::int64_t num_rows = num_heads * format.block_size;
  const std::int64_t scale_bytes = has_own_scales(format) ? std::int64_t{sizeof(float)} : 0;
  return num_rows * (dims * dtype_bytes(format.dtype) + scale_bytes);
}

// One piece of one block, and the tensors in it.
struct Piece {
  std::byte* data = nullptr;  // [size_bytes]
  std::int64_t size_bytes = 0;
  std::vector<KvTensor> tensors;
  std::uint32_t magic = 0;
};

std::vector<Piece> pieces_of(const KvCacheView& cache, std::int64_t block) {
  const auto bytes = [&](KvTensor tensor) {
    return stored_bytes(cache.format, cache.num_kv_heads, row_dims(cache, tensor));
  };
  const bool has_v = !cache.format.v_in_k;
  const bool joint = has_v && cache.opaque_v_bytes == 0;
  std::vector<Piece> pieces(1);
  pieces[0].data = static_cast<std::byte*>(cache.k) + block * cache.k_strides.block;
  pieces[0].size_bytes = kHeaderBytes + bytes(KvTensor::kK) + (joint ? bytes(KvTensor::kV) : 0);
  pieces[0].tensors = {KvTensor::kK};
  pieces[0].magic = joint ? 0x51564bU : 0x514bU;
  if (joint) pieces[0].tensors.push_back(KvTensor::kV);
  if (has_v && !joint) {
    pieces.push_back({.data = static_cast<std::byte*>(cache.v) + block * cache.v_strides.block,
                      .size_bytes = kHeaderBytes + bytes(KvTensor::kV),
                      .tensors = {KvTensor::kV},
                      .magic = 0x5156U});
  }
  const auto check = [](bool holds, const char* what, std::int64_t value) {
    if (!holds) fail(ErrorCode::kInternal, "scrambled block: ", what, ": ", value);
  };
  check(cache.format.layout == kScrambled, "of another layout",
        static_cast<int>(cache.format.layout));
  const bool areas = cache.k_strides.block % kAlignment != 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(areas ? cache.k : pieces[0].data);
  check(begin % kAlignment == 0, "record not aligned, bytes from a multiple",
        static_cast<std::int64_t>(begin % kAlignment));
  check(cache.opaque_k_bytes == pieces[0].size_bytes, "opaque_k_bytes", cache.opaque_k_bytes);
  check(cache.opaque_v_bytes == (pieces.size() == 2 ? pieces[1].size_bytes : 0), "opaque_v_bytes",
        cache.opaque_v_bytes);
  return pieces;
}

// A permutation of [0, size) for every size: steps that share no divisor with it.
class Permutation {
 public:
  explicit Permutation(std::int64_t size) : size_(size), step_(size * 5 / 8 + 1) {
    while (std::gcd(step_, size_) != 1) ++step_;
  }
  std::int64_t operator()(std::int64_t i) const { return (i * step_ + size_ / 3) % size_; }

 private:
  std::int64_t size_;
  std::int64_t step_;
};

std::byte mask_of(std::int64_t i) {
  return static_cast<std::byte>((i * 0x9d + 0x35) & 0xff);
}

std::uint32_t checksum(std::span<const std::byte> bytes) {
  std::uint32_t hash = 0x811c9dc5U;
  for (const std::byte b : bytes) hash = (hash ^ std::to_integer<std::uint32_t>(b)) * 0x01000193U;
  return hash;
}

std::span<const std::byte> body_of(const Piece& piece) {
  return {piece.data + kHeaderBytes, at(piece.size_bytes - kHeaderBytes)};
}

bool is_sealed(const Piece& piece) {
  std::uint32_t header[2];
  std::memcpy(header, piece.data, kHeaderBytes);
  return header[0] == piece.magic && header[1] == checksum(body_of(piece));
}

// Calls f(bytes of the plain cache, how many) for all that a piece holds, in its order.
template <class F>
void for_stored(const KvCacheView& plain, std::int64_t block, const Piece& piece, F&& f) {
  const std::int64_t element_bytes = dtype_bytes(plain.format.dtype);
  const auto for_rows = [&](auto&& row) {
    for (std::int64_t head = 0; head < plain.num_kv_heads; ++head) {
      for (std::int64_t token = 0; token < plain.format.block_size; ++token) row(head, token);
    }
  };
  for (const KvTensor tensor : piece.tensors) {
    const bool is_k = tensor == KvTensor::kK;
    auto* base = static_cast<std::byte*>(is_k ? plain.k : plain.v);
    for_rows([&](std::int64_t head, std::int64_t token) {
      f(base + element_offset(plain, tensor, block, head, token, 0) * element_bytes,
        row_dims(plain, tensor) * element_bytes);
    });
    if (!has_own_scales(plain.format)) continue;
    const KvScales& scales = is_k ? plain.k_scales : plain.v_scales;
    for_rows([&](std::int64_t head, std::int64_t token) {
      f(reinterpret_cast<std::byte*>(scales.data + scale_offset(scales, block, head, token)),
        std::int64_t{sizeof(float)});
    });
  }
}

}  // namespace

KvLayout scrambled_layout(const AttentionSpec& spec, Pieces pieces) {
  const bool has_v = !spec.kv.v_in_k;
  const std::int64_t k_bytes = stored_bytes(spec.kv, spec.num_kv_heads, spec.head_dim);
  const std::int64_t v_bytes = has_v ? stored_bytes(spec.kv, spec.num_kv_heads, spec.value_dim) : 0;
  const bool apart = has_v && pieces != Pieces::kJoint;
  KvLayout layout;
  layout.id = kScrambled;
  layout.alignment = kAlignment;
  layout.opaque_k_bytes = kHeaderBytes + k_bytes + (apart ? 0 : v_bytes);
  layout.opaque_v_bytes = apart ? kHeaderBytes + v_bytes : 0;
  layout.v_apart = apart && pieces == Pieces::kAreas;
  layout.v_offset_bytes = apart && !layout.v_apart ? layout.opaque_k_bytes + kGapBytes : 0;
  const std::int64_t end = layout.opaque_k_bytes + (apart ? kGapBytes + layout.opaque_v_bytes : 0);
  layout.block_bytes = (end + kAlignment - 1) / kAlignment * kAlignment;
  layout.k_strides.block = layout.v_apart ? layout.opaque_k_bytes + 1 : layout.block_bytes;
  layout.v_strides.block = layout.v_apart ? layout.opaque_v_bytes : apart ? layout.block_bytes : 0;
  return layout;
}

void seal(const KvCacheView& plain, std::int64_t plain_block, const KvCacheView& scrambled,
          std::int64_t block) {
  for (const Piece& piece : pieces_of(scrambled, block)) {
    std::byte* body = piece.data + kHeaderBytes;
    const Permutation place(piece.size_bytes - kHeaderBytes);
    std::int64_t i = 0;
    for_stored(plain, plain_block, piece, [&](const std::byte* from, std::int64_t num_bytes) {
      for (std::int64_t n = 0; n < num_bytes; ++n, ++i) body[place(i)] = from[n] ^ mask_of(i);
    });
    const std::uint32_t header[2] = {piece.magic, checksum(body_of(piece))};
    std::memcpy(piece.data, header, kHeaderBytes);
  }
}

void unseal(const KvCacheView& scrambled, std::int64_t block, const KvCacheView& plain,
            std::int64_t plain_block) {
  const std::vector<Piece> pieces = pieces_of(scrambled, block);
  for (const Piece& piece : pieces) {
    if (!is_sealed(piece)) {
      fail(ErrorCode::kInternal, "scrambled block: not what was stored there: block ", block);
    }
  }
  for (const Piece& piece : pieces) {
    const std::byte* body = piece.data + kHeaderBytes;
    const Permutation place(piece.size_bytes - kHeaderBytes);
    std::int64_t i = 0;
    for_stored(plain, plain_block, piece, [&](std::byte* to, std::int64_t num_bytes) {
      for (std::int64_t n = 0; n < num_bytes; ++n, ++i) to[n] = body[place(i)] ^ mask_of(i);
    });
  }
}

bool is_sealed(const KvCacheView& scrambled, std::int64_t block) {
  for (const Piece& piece : pieces_of(scrambled, block)) {
    if (!is_sealed(piece)) return false;
  }
  return true;
}

}  // namespace quire::testing
