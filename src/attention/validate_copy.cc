// SPDX-License-Identifier: Apache-2.0
// Copies of blocks between caches.
//
// "Destination once" and "never both" are found with a bit per block on the stack, in passes over
// ranges of blocks: no allocation, and one pass for every cache of up to kBlocksPerPass blocks.
// That layers differ is found in the same way, with a set of addresses.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "attention/validate.h"
#include "base/check.h"
#include "layout/kv_extent.h"

namespace quire {
namespace {

constexpr std::int64_t kBlocksPerPass = 65536;  // 8 KiB of bits

// A set of blocks of [first, first + size).
class BlockRangeSet {
 public:
  BlockRangeSet(std::int64_t first, std::int64_t size) : first_(first), size_(size) {
    std::fill_n(words_.begin(), (size + 63) / 64, std::uint64_t{0});
  }
  bool covers(std::int64_t block) const { return block >= first_ && block - first_ < size_; }
  // REQUIRES: covers(block).
  bool contains(std::int64_t block) const { return (word(block) >> (block - first_) % 64) & 1U; }
  void insert(std::int64_t block) {
    words_[static_cast<std::size_t>((block - first_) / 64)] |= std::uint64_t{1}
                                                               << (block - first_) % 64;
  }

 private:
  std::uint64_t word(std::int64_t block) const {
    return words_[static_cast<std::size_t>((block - first_) / 64)];
  }

  std::int64_t first_;
  std::int64_t size_;
  std::array<std::uint64_t, kBlocksPerPass / 64> words_;
};

void require_same(std::int64_t layer, const char* field, std::int64_t src, std::int64_t dst) {
  require(src == dst, "dst[", layer, "].", field, ": needs ", src, " as src, has ", dst);
}

void validate_layouts(std::int64_t layer, const KvCacheView& src, const KvCacheView& dst,
                      CopyKind kind) {
  const KvLayoutId from = src.format.layout;
  const KvLayoutId to = dst.format.layout;
  const bool ok = kind == CopyKind::kExport   ? to == KvLayoutId::kPlain
                  : kind == CopyKind::kImport ? from == KvLayoutId::kPlain
                                              : from == to;
  if (!ok) {
    const char* const wanted = kind == CopyKind::kExport   ? "export needs a plain dst"
                               : kind == CopyKind::kImport ? "import needs a plain src"
                                                           : "a copy needs equal ones";
    fail(ErrorCode::kInvalidArgument, "dst[", layer, "].format.layout: ", wanted, ": from ",
         layout_text(from), " to ", layout_text(to));
  }
  if (from != to || from < KvLayoutId::kFirstPrivate) return;
  require_same(layer, "opaque_k_bytes", src.opaque_k_bytes, dst.opaque_k_bytes);
  require_same(layer, "opaque_v_bytes", src.opaque_v_bytes, dst.opaque_v_bytes);
}

void validate_layer(std::int64_t layer, const KvCacheView& src, const KvCacheView& dst,
                    CopyKind kind) {
  validate_cache(src, CacheUse::kRead, {"src", layer});
  validate_cache(dst, CacheUse::kWrite, {"dst", layer});
  require_same(layer, "num_kv_heads", src.num_kv_heads, dst.num_kv_heads);
  require_same(layer, "head_dim", src.head_dim, dst.head_dim);
  require_same(layer, "value_dim", src.value_dim, dst.value_dim);
  require(src.format.dtype == dst.format.dtype, "dst[", layer, "].format.dtype: needs ",
          dtype_name(src.format.dtype), " as src, has ", dtype_name(dst.format.dtype));
  require_same(layer, "format.block_size", src.format.block_size, dst.format.block_size);
  require(src.format.scales == dst.format.scales, "dst[", layer, "].format.scales: needs ",
          scale_granularity_name(src.format.scales), " as src, has ",
          scale_granularity_name(dst.format.scales));
  require_same(layer, "format.v_in_k", src.format.v_in_k ? 1 : 0, dst.format.v_in_k ? 1 : 0);
  validate_layouts(layer, src, dst, kind);
}

// Whether a view is another one at another place: then it is as valid as that one. Layers mostly
// are, and a comparison costs less than a validation.
bool is_moved(const KvCacheView& from, const KvCacheView& to) {
  const auto address = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
  const auto move = [&](const void* a, const void* b) { return address(b) - address(a); };
  const auto moved_scales = [&](const KvScales& a, const KvScales& b) {
    return a.strides == b.strides && (a.data == nullptr) == (b.data == nullptr) &&
           move(a.data, b.data) % alignof(float) == 0;
  };
  constexpr std::uintptr_t kLargestElement = 4;
  return from.k != nullptr && to.k != nullptr && (from.v == nullptr) == (to.v == nullptr) &&
         move(from.k, to.k) % kLargestElement == 0 && move(from.k, from.v) == move(to.k, to.v) &&
         from.k_strides == to.k_strides && from.v_strides == to.v_strides &&
         moved_scales(from.k_scales, to.k_scales) && moved_scales(from.v_scales, to.v_scales) &&
         move(from.k_scales.data, from.v_scales.data) == move(to.k_scales.data, to.v_scales.data) &&
         from.num_blocks == to.num_blocks && from.num_kv_heads == to.num_kv_heads &&
         from.head_dim == to.head_dim && from.value_dim == to.value_dim &&
         from.format == to.format && from.opaque_k_bytes == to.opaque_k_bytes &&
         from.opaque_v_bytes == to.opaque_v_bytes && from.device == to.device;
}

void validate_devices(std::span<const KvCacheView> layers, const char* name, Device device) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Device at = layers[i].device;
    if (!at.is_host() && at != device) {
      fail(ErrorCode::kInvalidArgument, name, "[", i, "]: on ", device_text(at),
           ", neither on the host nor where the backend computes, ", device_text(device));
    }
    if (at != layers[0].device) {
      fail(ErrorCode::kInvalidArgument, name, "[", i, "]: on ", device_text(at), ", but ", name,
           "[0] on ", device_text(layers[0].device));
    }
  }
}

// Up to kCapacity addresses, hashed.
class AddressSet {
 public:
  static constexpr std::size_t kCapacity = 256;

  bool contains(const void* address) const { return slots_[slot_of(address)] == key_of(address); }
  void insert(const void* address) { slots_[slot_of(address)] = key_of(address); }

 private:
  static constexpr std::size_t kNumSlots = 4 * kCapacity;

  // Never 0, which is a free slot: null is an address too.
  static std::uint64_t key_of(const void* address) {
    return std::uint64_t{reinterpret_cast<std::uintptr_t>(address)} + 1;
  }
  // Where the address is, or belongs. Addresses are often multiples of large powers of two: the
  // product spreads them over its high bits.
  std::size_t slot_of(const void* address) const {
    const std::uint64_t key = key_of(address);
    std::size_t slot = (key * 0x9e3779b97f4a7c15ULL) >> 54;
    static_assert(kNumSlots == std::size_t{1} << (64 - 54));
    while (slots_[slot] != 0 && slots_[slot] != key) slot = (slot + 1) % kNumSlots;
    return slot;
  }

  std::array<std::uint64_t, kNumSlots> slots_{};
};

bool are_ascending(std::span<const KvCacheView> layers) {
  const auto falls = [](const KvCacheView& a, const KvCacheView& b) {
    return reinterpret_cast<std::uintptr_t>(a.k) >= reinterpret_cast<std::uintptr_t>(b.k);
  };
  return std::adjacent_find(layers.begin(), layers.end(), falls) == layers.end();
}

// Whether all layers begin at addresses of their own.
bool are_distinct(std::span<const KvCacheView> layers) {
  if (are_ascending(layers)) return true;  // as KvCache lays them
  for (; !layers.empty(); layers = layers.subspan(std::min(layers.size(), AddressSet::kCapacity))) {
    AddressSet addresses;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (addresses.contains(layers[i].k)) return false;
      if (i < AddressSet::kCapacity) addresses.insert(layers[i].k);
    }
  }
  return true;
}

// Layers may lie between each other in one tensor, but none may be another.
void validate_distinct(std::span<const KvCacheView> layers) {
  if (are_distinct(layers)) return;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].num_blocks == 0) continue;
    for (std::size_t j = 0; j < i; ++j) {
      require(layers[i].k != layers[j].k, "dst: layers ", j, " and ", i, " are the same memory");
    }
  }
}

void validate_layers(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                     CopyKind kind, Device device) {
  require(src.size() == dst.size(), "dst: needs ", src.size(), " layers as src, has ", dst.size());
  validate_devices(src, "src", device);
  validate_devices(dst, "dst", device);
  validate_distinct(dst);
  for (std::size_t i = 0; i < src.size(); ++i) {
    if (i > 0 && is_moved(src[i - 1], src[i]) && is_moved(dst[i - 1], dst[i])) continue;
    validate_layer(static_cast<std::int64_t>(i), src[i], dst[i], kind);
  }
}

std::int64_t fewest_blocks(std::span<const KvCacheView> layers) {
  std::int64_t fewest = layers[0].num_blocks;
  for (const KvCacheView& layer : layers) fewest = std::min(fewest, layer.num_blocks);
  return fewest;
}

// How many blocks the view `dst` begins after `src` in the same memory, if it is the same.
std::optional<std::int64_t> shift_of(const KvCacheView& src, const KvCacheView& dst) {
  const auto stride_bytes = [](const KvCacheView& view) {
    const bool opaque = is_opaque(view.format.layout);
    return view.k_strides.block * (opaque ? 1 : dtype_bytes(view.format.dtype));
  };
  const std::int64_t stride = stride_bytes(src);
  if (src.device != dst.device || stride != stride_bytes(dst)) return std::nullopt;
  const std::int64_t distance = static_cast<const char*>(dst.k) - static_cast<const char*>(src.k);
  if (stride == 0 || distance % stride != 0) return std::nullopt;
  const std::int64_t shift = distance / stride;
  const bool meet = shift < src.num_blocks && -shift < dst.num_blocks;
  return meet ? std::optional(shift) : std::nullopt;
}

std::optional<std::int64_t> shift_of(std::span<const KvCacheView> src,
                                     std::span<const KvCacheView> dst) {
  for (std::size_t i = 0; i < src.size(); ++i) {
    if (const auto shift = shift_of(src[i], dst[i])) return shift;
  }
  return std::nullopt;
}

void validate_ids(std::int64_t pair, const BlockCopy& copy, std::int64_t num_src,
                  std::int64_t num_dst) {
  require(copy.src >= 0 && copy.src < num_src, "copies: pair ", pair, " (", copy.src, " -> ",
          copy.dst, "): source not in [0, ", num_src, "): ", copy.src);
  require(copy.dst >= 0 && copy.dst < num_dst, "copies: pair ", pair, " (", copy.src, " -> ",
          copy.dst, "): destination not in [0, ", num_dst, "): ", copy.dst);
}

std::int64_t first_pair_to(std::span<const BlockCopy> copies, std::int32_t block) {
  const auto is_it = [block](const BlockCopy& copy) { return copy.dst == block; };
  return std::find_if(copies.begin(), copies.end(), is_it) - copies.begin();
}

void validate_conflicts(std::span<const BlockCopy> copies, std::int64_t first, std::int64_t size,
                        std::optional<std::int64_t> shift) {
  BlockRangeSet destinations(first, size);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::int32_t block = copies[i].dst;
    if (!destinations.covers(block)) continue;
    if (destinations.contains(block)) {
      fail(ErrorCode::kInvalidArgument, "copies: pairs ", first_pair_to(copies, block), " and ", i,
           " have the same destination: ", block);
    }
    destinations.insert(block);
  }
  if (!shift) return;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::int64_t in_dst = copies[i].src - *shift;
    const auto block = static_cast<std::int32_t>(in_dst);
    if (block == in_dst && destinations.covers(block) && destinations.contains(block)) {
      fail(ErrorCode::kInvalidArgument, "copies: source of pair ", i,
           " is the destination of pair ", first_pair_to(copies, block),
           " in the same cache: ", block);
    }
  }
}

}  // namespace

void validate_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                          std::span<const BlockCopy> copies, CopyKind kind, Device device) {
  validate_layers(src, dst, kind, device);
  if (src.empty()) return;
  const std::int64_t num_src = fewest_blocks(src);
  const std::int64_t num_dst = fewest_blocks(dst);
  std::int64_t end = 0;  // of the destinations
  for (std::size_t i = 0; i < copies.size(); ++i) {
    validate_ids(static_cast<std::int64_t>(i), copies[i], num_src, num_dst);
    end = std::max<std::int64_t>(end, copies[i].dst + std::int64_t{1});
  }
  const std::optional<std::int64_t> shift = shift_of(src, dst);
  for (std::int64_t first = 0; first < end; first += kBlocksPerPass) {
    validate_conflicts(copies, first, std::min(kBlocksPerPass, end - first), shift);
  }
}

void validate_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                          const BlockRegionCopy& copy, Device device) {
  validate_copy_blocks(src, dst, {&copy.blocks, 1}, CopyKind::kSameLayout, device);
  for (std::size_t i = 0; i < src.size(); ++i) {
    const KvFormat& format = src[i].format;
    require(format.layout < KvLayoutId::kFirstPrivate, "src[", i,
            "].format.layout: its tokens are opaque: private ", static_cast<int>(format.layout));
    const std::int64_t block_size = format.block_size;
    require(copy.first_token >= 0 && copy.first_token <= block_size,
            "copy.first_token: not in [0, ", block_size, "]: ", copy.first_token);
    require(copy.num_tokens >= 0 && copy.num_tokens <= block_size - copy.first_token,
            "copy.num_tokens: not in [0, ", block_size - copy.first_token, "] after token ",
            copy.first_token, ": ", copy.num_tokens);
  }
}

}  // namespace quire
