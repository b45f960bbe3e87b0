// SPDX-License-Identifier: Apache-2.0
// The paged KV cache: how a block is laid out (KvLayout), a view of one layer (KvCacheView), and
// storage that quire owns (KvCache). docs/kv_layout.md draws the layouts.
//
// A view holds K and V apart, each with its own base and strides, so that every layout in which a
// token's elements are contiguous is served without a copy. Slot = block * block_size + offset.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/attention_spec.h"
#include "quire/device.h"
#include "quire/export.h"
#include "quire/tensor.h"

namespace quire {

// In elements. Element (block, head, token, dim) of a plain tensor lies at
// block * strides.block + head * strides.head + token * strides.token + dim.
// A tiled layout uses block and head only; in an opaque one an element is a byte and only block
// counts.
struct KvStrides {
  std::int64_t block = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
  friend bool operator==(const KvStrides&, const KvStrides&) = default;
};

// Scale (block, head, token) lies at block * strides.block + head * strides.head + token *
// strides.token. Zero strides broadcast: all zero is per tensor, only head set is per head.
struct KvScales {
  float* data = nullptr;
  KvStrides strides;
};

// The cache of one layer. Trivially copyable, so that kernels take it as it is. With v_in_k, v,
// v_strides and v_scales equal those of K.
struct KvCacheView {
  void* k = nullptr;  // [num_blocks, num_kv_heads, block_size, head_dim] in the order of k_strides
  void* v = nullptr;  // [num_blocks, num_kv_heads, block_size, value_dim] in the order of v_strides
  KvStrides k_strides;
  KvStrides v_strides;
  KvScales k_scales;  // 8-bit formats only; opaque blocks hold those per (token, head) themselves
  KvScales v_scales;
  std::int64_t num_blocks = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;
  KvFormat format;
  std::int64_t opaque_k_bytes = 0;  // opaque layouts: bytes of one block's K ...
  std::int64_t opaque_v_bytes = 0;  // ... and V, 0 where K's hold V; both 0 otherwise
  Device device;
};

// The order of the axes of a plain tensor that a caller brings.
enum class KvOrder : std::uint8_t { kBlockHeadTokenDim, kBlockTokenHeadDim };

// How one tensor holds both K and V.
enum class KvPacking : std::uint8_t {
  kKvFirst,     // [2, num_blocks, ...]
  kKvPerBlock,  // [num_blocks, 2, ...]
  kKvPerToken,  // [..., head_dim + value_dim]: K then V of one token and head
};

// A view over K and V tensors of the caller (rank 4, any strides but 1 for dim). Per-(token, head)
// scales, and the caller's own ones, are set on the result. Throws naming the axis that does not
// fit.
QUIRE_API KvCacheView view_kv(const AttentionSpec& spec, KvOrder order, const MutableTensorView& k,
                              const MutableTensorView& v);
// The same from one tensor that holds both (rank 5, or 4 for kKvPerToken).
QUIRE_API KvCacheView split_kv(const AttentionSpec& spec, KvOrder order, KvPacking packing,
                               const MutableTensorView& kv);
// Plain ragged K [rows, num_kv_heads, head_dim] and V as a view with block_size 1; attend only
// reads it. With v_in_k, `v` is ignored. REQUIRES: spec.kv.block_size == 1.
QUIRE_API KvCacheView view_ragged(const AttentionSpec& spec, const TensorView& k,
                                  const TensorView& v);

// How one block of one layer is stored in a cache that quire allocates: a record of block_bytes.
struct KvLayout {
  KvLayoutId id = KvLayoutId::kPlain;
  std::int64_t block_bytes = 0;  // distance of two records, a multiple of alignment
  std::int64_t alignment = 64;
  std::int64_t v_offset_bytes = 0;  // of V inside the record; K is at 0
  KvStrides k_strides;              // elements inside the record; block covers the whole record
  KvStrides v_strides;
  std::int64_t opaque_k_bytes = 0;
  std::int64_t opaque_v_bytes = 0;
  // Of opaque layouts: no records, but K of all blocks, then V of all blocks from a multiple of the
  // alignment on, each with its own block stride; block_bytes has room for both.
  bool v_apart = false;
};

// [head, token, dim] for K, then for V. Serves every spec.
QUIRE_API KvLayout plain_layout(const AttentionSpec& spec);
// Pairs interleaved in tiles of 16; throws unless pair_tiled_layout_fits.
QUIRE_API KvLayout pair_tiled_layout(const AttentionSpec& spec);
QUIRE_API bool pair_tiled_layout_fits(const AttentionSpec& spec) noexcept;

// Owns the storage of all layers of one group, all in one layout. Move-only.
class QUIRE_API KvCache {
 public:
  struct Options {
    int num_layers = 1;
    std::int64_t num_blocks = 0;
    PageHint pages = PageHint::kDefault;
    bool on_host = false;  // in the backend's (pinned) host memory: the other end of a swap
  };

  // Memory is uninitialised, scales per tensor and per head start at 1. `memory` must outlive it.
  KvCache(DeviceMemory& memory, const AttentionSpec& spec, const KvLayout& layout,
          const Options& options);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  std::span<const KvCacheView> layers() const noexcept { return layers_; }
  const KvCacheView& layer(int index) const;
  std::int64_t num_blocks() const noexcept;
  std::int64_t size_bytes() const noexcept;  // scales included

 private:
  struct Storage;
  std::unique_ptr<Storage> storage_;
  std::vector<KvCacheView> layers_;
};

// One block of src to one block of dst.
struct BlockCopy {
  std::int32_t src = 0;
  std::int32_t dst = 0;
};

// The tokens [first_token, first_token + num_tokens) of one block to the same place of another.
struct BlockRegionCopy {
  BlockCopy blocks;
  int first_token = 0;
  int num_tokens = 0;
};

}  // namespace quire
