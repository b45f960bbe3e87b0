// SPDX-License-Identifier: Apache-2.0
// Tiles of keys and values in shared memory, and how they get there from any paged cache. A tile
// holds the K rows of kKeys keys, then their V rows, then (8-bit only) their scales; rows are
// padded to kDims. 16-byte chunks of a row are permuted by its key so that neither copies nor
// matrix loads meet in a bank.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/mask.h"
#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/attend_rows.h"

namespace quire::gpu {

// A stored 8-bit number, of a format that only the call knows: one set of kernels serves all three.
struct AnyByte {
  std::uint8_t bits;
};

// use(number) with a number of the stored format: what follows from it is compiled for each of the
// 8-bit ones, and the call says which of them runs. The same for all lanes, and meant for whole
// tiles; what loops over their numbers with it must be rare.
template <class Stored, class Use>
QUIRE_DEVICE void with_format(DType stored, const Use& use) {
  if constexpr (!std::is_same_v<Stored, AnyByte>) {
    use(Stored{});
  } else if (stored == DType::kI8) {
    use(std::int8_t{});
  } else if (stored == DType::kF8E5M2) {
    use(Float8E5M2{});
  } else {
    use(Float8E4M3{});
  }
}

// Of each number in a word: the bits that are all ones in what is infinite or NaN (the exponent, or
// all but the sign where the only such code is NaN), and the lowest of them.
struct NonFiniteBits {
  std::uint32_t mask;
  std::uint32_t lowest;
};
QUIRE_DEVICE constexpr NonFiniteBits non_finite_bits(BFloat16) {
  return {0x7f807f80U, 0x00800080U};
}
QUIRE_DEVICE constexpr NonFiniteBits non_finite_bits(Float16) {
  return {0x7c007c00U, 0x04000400U};
}
QUIRE_DEVICE constexpr NonFiniteBits non_finite_bits(Float8E4M3) {
  return {0x7f7f7f7fU, 0x01010101U};
}
QUIRE_DEVICE constexpr NonFiniteBits non_finite_bits(Float8E5M2) {
  return {0x7c7c7c7cU, 0x04040404U};
}
QUIRE_DEVICE constexpr NonFiniteBits non_finite_bits(std::int8_t) {
  return {0, 0};
}

template <class Stored, int kDims>
struct KeyTile {
  static constexpr bool kIs16Bit = sizeof(Stored) == 2;
  static constexpr int kKeys = kIs16Bit ? 16 : 32;  // 32 keys of 64 16-bit dims were 5 % slower
  static constexpr int kRowBytes = kDims * static_cast<int>(sizeof(Stored));
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kTensorBytes = kKeys * kRowBytes;
  static constexpr int kScaleBytes = kIs16Bit ? 0 : 2 * kKeys * 4;
  static constexpr int kBytes = 2 * kTensorBytes + kScaleBytes;
  // 16-bit numbers are multiplied as what they are, 8-bit ones as f16.
  template <bool k16Bit, class T>
  struct ComputeOf {
    using Type = T;
  };
  template <class T>
  struct ComputeOf<false, T> {
    using Type = Float16;
  };
  using Compute = typename ComputeOf<kIs16Bit, Stored>::Type;
  static constexpr bool kScalesQueries = !kIs16Bit;

  // 16-bit: where chunk 2 * pair + odd of the row of key own_key + keys lies, permuted as any
  // chunk: what follows from the lane once, then with constants. `keys` is a multiple of 8.
  QUIRE_DEVICE static int matrix_own(int own_key, int odd) {
    return own_key * kRowBytes + ((16 * odd) ^ (16 * (own_key & 7)));
  }
  QUIRE_DEVICE static int matrix_row(int own, int pair, int keys) {
    return (own ^ (32 * (pair % 4))) + 128 * (pair / 4) + keys * kRowBytes;
  }
  // What is XORed to the chunks of a key's row; swizzle(a + b) is swizzle(a) ^ swizzle(b) where a
  // and b have no bit in common.
  QUIRE_DEVICE static constexpr int k_swizzle(int key) {
    return kIs16Bit ? key & 7 : (key & 1) << 2 & (kChunks - 1);
  }
  QUIRE_DEVICE static constexpr int v_swizzle(int key) {
    return kIs16Bit ? key & 7 : (key >> 1 & 3) << 1 & (kChunks - 1);
  }
  QUIRE_DEVICE static int v_chunk(int key, int chunk) { return chunk ^ v_swizzle(key); }

  // 8-bit: where a lane finds 16 dims of key l / 4, those of part 0 that belong to it.
  QUIRE_DEVICE static int k_own() {
    const int key = lane() / 4;
    return key * kRowBytes + 16 * (lane() % 4 ^ k_swizzle(key));
  }
  QUIRE_DEVICE static Sixteen k_sixteen(const unsigned char* tile, int own, int first_key,
                                        int part) {
    return *reinterpret_cast<const Sixteen*>(tile + (own ^ (64 * (part % 2))) + 128 * (part / 2) +
                                             first_key * kRowBytes);
  }
  // 8-bit: where it finds the bytes from `byte` on of key 2 * (l % 4), of which it reads three more
  // keys in every sixteen, those of key_of_four: the chunks of their rows are permuted alike.
  QUIRE_DEVICE static int v_own(int byte) {
    const int key = 2 * (lane() % 4);
    return key * kRowBytes + 16 * v_chunk(key, byte / 16) + byte % 16;
  }
  QUIRE_DEVICE static constexpr int key_of_four(int sixteen, int i) {
    return 16 * sixteen + i % 2 + 8 * (i / 2);
  }
  // 8-bit: bytes i and i + 1 of either word, in pairs, widened.
  template <class Number>
  QUIRE_DEVICE static void widen_pairs(std::uint32_t low, std::uint32_t high, int i, Number number,
                                       std::uint32_t& first, std::uint32_t& second) {
    const auto selector =
        static_cast<std::uint32_t>(i | (4 + i) << 4 | (1 + i) << 8 | (5 + i) << 12);
    const std::uint32_t pairs = select_bytes(low, high, selector);
    first = two_halves(pairs, 0, number);
    second = two_halves(pairs, 1, number);
  }

  QUIRE_DEVICE static float key_scale(const unsigned char* tile, int key) {
    return reinterpret_cast<const float*>(tile + 2 * kTensorBytes)[key];
  }
  QUIRE_DEVICE static float value_scale(const unsigned char* tile, int key) {
    return reinterpret_cast<const float*>(tile + 2 * kTensorBytes)[kKeys + key];
  }

  QUIRE_DEVICE static float value_at(const unsigned char* tile, int key, int dim, DType stored) {
    const int byte = dim * static_cast<int>(sizeof(Stored));
    const unsigned char* row = tile + kTensorBytes + key * kRowBytes;
    float value = 0.0F;
    with_format<Stored>(stored, [&](auto number) {
      value = to_float(*reinterpret_cast<const decltype(number)*>(
          row + 16 * v_chunk(key, byte / 16) + byte % 16));
    });
    return value;
  }

  // Whether a value of the tile is infinite or NaN; the same for all lanes.
  QUIRE_DEVICE static bool has_non_finite_values(const unsigned char* tile, DType stored) {
    return has_non_finite(tile + kTensorBytes, kTensorBytes, stored);
  }

  // Makes the values of those keys zeros, when all have been added.
  QUIRE_DEVICE static void clear_non_finite(unsigned char* tile, DType stored) {
    QUIRE_NO_UNROLL
    for (int key = 0; key < kKeys; ++key) {
      if (!is_non_finite(tile, key, stored)) continue;
      sync_team();
      for (int chunk = lane(); chunk < kChunks; chunk += kTeam) {
        *reinterpret_cast<Sixteen*>(tile + kTensorBytes + key * kRowBytes + 16 * chunk) = {};
      }
      sync_team();
    }
  }
  // Whether a value of the key is infinite or NaN; the same for all lanes.
  QUIRE_DEVICE static bool is_non_finite(const unsigned char* tile, int key, DType stored) {
    return has_non_finite(tile + kTensorBytes + key * kRowBytes, kRowBytes, stored);
  }

  // Whether any of these numbers is infinite or NaN; the same for all lanes.
  QUIRE_DEVICE static bool has_non_finite(const unsigned char* numbers, int bytes, DType stored) {
    NonFiniteBits bits;
    with_format<Stored>(stored, [&](auto number) { bits = non_finite_bits(number); });
    constexpr std::uint32_t kSigns = kIs16Bit ? 0x80008000U : 0x80808080U;
    std::uint32_t found = 0;
    QUIRE_NO_UNROLL
    for (int at = 16 * lane(); at < bytes; at += 16 * kTeam) {
      const Sixteen some = *reinterpret_cast<const Sixteen*>(numbers + at);
      // One more at the lowest bit carries to the place of the sign only from all ones.
      QUIRE_UNROLL
      for (const std::uint32_t x : some.x) found |= (x & bits.mask) + bits.lowest;
    }
    return any((found & kSigns) != 0);
  }
};

// Brings tiles of an item's keys to shared memory, by one team, every kStride-th tile. Keys outside
// the item, or that no row sees, are zeros: they may lie nowhere.
//
// Block ids of the table come the same way, kLead tiles before the tile that they are for: no
// register is ever on its way from global memory, and nothing waits for one.
//
// kOwnPlace: the place in shared memory is the team's own. Only then a copy says how long its line
// stays in the cache: of such a copy to a place that follows from the thread block alone, ptxas of
// CUDA 13.0 makes an instruction that no processor knows.
template <class Stored, int kDims, int kStride, int kLead, bool kOwnPlace>
class TileLoader {
 public:
  using Tile = KeyTile<Stored, kDims>;
  // Ids of this tile, of those after it, and of the one whose ids are under way.
  static constexpr int kSlots = kLead + 1;
  static constexpr int kIdBytes = kSlots * Tile::kKeys * 4;
  // The first tiles end within the keys of RunStart::ids, wherever the first one begins.
  static_assert(kFirstIdKeys % Tile::kKeys == 0);
  static_assert(kFirstIdKeys - Tile::kKeys + kStride * kLead * Tile::kKeys <=
                kFirstIds * kKeysPerId);

  // ids [kIdBytes] is the team's own, in shared memory. Takes the ids of kLead tiles from `first`
  // on, which are in slots 0, 1, ..: those of the table or, where kKeysPerId keys share one, of
  // first_ids (RunStart) unless it is null.
  QUIRE_DEVICE void begin(const AttendArgs& args, const Item& item, std::int32_t* ids, int first,
                          const std::int32_t* first_ids) {
    resume(args, item, ids);
    if (table_ == nullptr) return;
    const bool are_known = by_blocks_ && first_ids != nullptr;
    QUIRE_UNROLL
    for (int i = 0; i < kLead; ++i) {
      if (!takes_id()) continue;
      const int tile = first + i * kStride;
      std::int32_t& id = ids_[i * Tile::kKeys + lane_];
      if (are_known) {
        const int key = tile * Tile::kKeys + lane_;
        id = first_ids[(key - item.key_begin / kFirstIdKeys * kFirstIdKeys) / kRun];
      } else {
        const Place place = find_place(args, item, tile);
        id = place.wanted ? table_[place.index] : 0;
      }
    }
    sync_team();
  }
  // The same asynchronously, with the copies of the next group.
  QUIRE_DEVICE static void fetch_ids(const AttendArgs& args, const Item& item, std::int32_t* ids,
                                     int first) {
    TileLoader loader;
    loader.take_item(args, item, ids);
    QUIRE_UNROLL
    for (int i = 0; i < kLead; ++i) loader.copy_ids(args, item, first + i * kStride, i);
  }
  // What follows from item and lane alone: a thread that lacks registers keeps it elsewhere.
  struct alignas(16) Lane {
    const unsigned char* k;  // its chunk of the head, and of its row in a run
    const unsigned char* v;
  };
  QUIRE_DEVICE Lane own_lane() const { return {k_lane_, v_lane_}; }
  QUIRE_DEVICE void resume(const AttendArgs& args, const Item& item, std::int32_t* ids,
                           const Lane& own) {
    take_item(args, item, ids);
    k_lane_ = own.k;
    v_lane_ = own.v;
  }
  // An item of which ids are there.
  QUIRE_DEVICE void resume(const AttendArgs& args, const Item& item, std::int32_t* ids) {
    take_item(args, item, ids);
    const KvCacheView& cache = args.cache;
    k_lane_ = static_cast<const unsigned char*>(cache.k) + 16 * lane_chunk() +
              kSize * kv_head_ * cache.k_strides.head;
    v_lane_ = static_cast<const unsigned char*>(cache.format.v_in_k ? cache.k : cache.v) +
              16 * lane_chunk() + kSize * kv_head_ * cache.v_strides.head;
    if (by_blocks_) {
      k_lane_ += kSize * lane_row() * cache.k_strides.token;
      v_lane_ += kSize * lane_row() * cache.v_strides.token;
    }
  }

  // Starts the copies of a tile, whose ids are in `slot`, and of the ids of the tile kLead later,
  // in one group. These take the slot of the tile before, whose load all lanes must have passed.
  // Returns whether the item has keys there.
  QUIRE_DEVICE bool load(const AttendArgs& args, const Item& item, int tile, int slot,
                         unsigned char* to) {
    const int first_key = tile * Tile::kKeys;
    const std::int32_t* ids = ids_ + slot * Tile::kKeys;
    const int later = tile + kLead * kStride;
    const int later_slot = slot == 0 ? kLead : slot - 1;
    const bool has_keys = first_key < key_end_;
    const bool is_whole = (first_key >= key_begin_) & (first_key + Tile::kKeys <= key_end_);
    if (QUIRE_LIKELY(args.has_simple_tiles & is_whole)) {
      copy_simple_ids(args, later, later_slot);  // behind the rows, its branch would wait for them
      copy_runs<true>(args, first_key, ids, to, [](int) { return true; });
    } else if (has_keys) {
      if (by_blocks_) {
        load_blocks(args, first_key, ids, to);
      } else {
        load_keys(args, item, tile, ids, to);
      }
      copy_ids(args, item, later, later_slot);
    }
    async_commit();
    return has_keys;
  }

 private:
  QUIRE_DEVICE void take_item(const AttendArgs& args, const Item& item, std::int32_t* ids) {
    ids_ = ids;
    lane_ = recomputed(lane());
    key_begin_ = item.key_begin;
    key_end_ = item.key_end;
    kv_head_ = item.kv_head;
    const bool is_ragged = args.batch.kv.blocks.kind == BlockTables::Kind::kRagged;
    table_ = is_ragged ? nullptr : args.batch.kv.blocks.indices.data + item.table_begin;
    first_source_row_ = item.table_begin;
    // Sixteen keys in a row lie in one block: their addresses follow from the first.
    by_blocks_ = !is_ragged && args.cache.format.block_size % kRun == 0 &&
                 args.batch.tree_mask.begins.size == 0;
  }

  // Where this lane's key of a tile lies but for its block.
  struct Place {
    int index;  // into the table
    int token;
    bool wanted;
  };
  QUIRE_DEVICE Place find_place(const AttendArgs& args, const Item& item, int tile) const {
    const int offset = by_blocks_ ? lane_ % Tile::kKeys & -kRun : lane_ % Tile::kKeys;
    const int key = tile * Tile::kKeys + offset;
    bool wanted = (key < key_end_) & (key + (by_blocks_ ? kRun : 1) > key_begin_);
    if (args.batch.tree_mask.begins.size != 0 && wanted) wanted = is_seen_by_some(args, item, key);
    const int block_size = args.cache.format.block_size;
    const int index = args.block_shift >= 0
                          ? key >> args.block_shift
                          : static_cast<unsigned>(key) / static_cast<unsigned>(block_size);
    return {index, key - index * block_size, wanted};
  }

  // Whether this lane brings the id of its key.
  QUIRE_DEVICE bool takes_id() const {
    return lane_ < Tile::kKeys && (!by_blocks_ || lane_ % kRun == 0);
  }
  QUIRE_DEVICE void copy_ids(const AttendArgs& args, const Item& item, int tile, int slot) const {
    if (table_ == nullptr) return;
    const Place place = find_place(args, item, tile);
    if (takes_id()) {
      async_copy4(ids_ + slot * Tile::kKeys + lane_, table_ + (place.wanted ? place.index : 0),
                  place.wanted);
    }
  }

  // Of a tile after one that is simple.
  QUIRE_DEVICE void copy_simple_ids(const AttendArgs& args, int tile, int slot) const {
    const int key = tile * Tile::kKeys + lane_;
    const bool wanted = key < key_end_;
    if ((lane_ < Tile::kKeys) & (lane_ % kRun == 0)) {
      async_copy4(ids_ + slot * Tile::kKeys + lane_,
                  table_ + (wanted ? key >> args.block_shift : 0), wanted);
    }
  }

  static constexpr int kRun = kKeysPerId;
  static constexpr std::int64_t kNowhere = INT64_MIN;  // strides may be negative
  static constexpr std::int64_t kSize = sizeof(Stored);
  static constexpr int kRowsPerCopy = kTeam / Tile::kChunks;
  static constexpr int kCopies = Tile::kKeys / kRowsPerCopy;
  static_assert(kRowsPerCopy >= 1 && kTeam % Tile::kChunks == 0);

  QUIRE_DEVICE static void copy_chunk(void* to, const void* from, bool wanted,
                                      const CachePolicy& policy) {
    if constexpr (kOwnPlace) {
      async_copy16(to, from, wanted, policy);
    } else {
      async_copy16(to, from, wanted);
    }
  }

  // In every copy a lane brings the same chunk of a row, kRowsPerCopy rows further on.
  QUIRE_DEVICE int lane_chunk() const { return lane_ % Tile::kChunks; }
  QUIRE_DEVICE int lane_row() const { return lane_ / Tile::kChunks; }
  QUIRE_DEVICE int k_offset(int copy) const {
    const int permuted = 16 * (lane_chunk() ^ Tile::k_swizzle(lane_row()));
    return lane_row() * Tile::kRowBytes + (permuted ^ (16 * Tile::k_swizzle(copy * kRowsPerCopy))) +
           copy * kRowsPerCopy * Tile::kRowBytes;
  }
  QUIRE_DEVICE int v_offset(int copy) const {
    const int permuted = 16 * (lane_chunk() ^ Tile::v_swizzle(lane_row()));
    return Tile::kTensorBytes + lane_row() * Tile::kRowBytes +
           (permuted ^ (16 * Tile::v_swizzle(copy * kRowsPerCopy))) +
           copy * kRowsPerCopy * Tile::kRowBytes;
  }

  QUIRE_DEVICE_RARE static bool is_seen_by_some(const AttendArgs& args, const Item& item, int key) {
    const SequenceView sequence = item_sequence(args, item);
    return sequence.tree_bits == nullptr ||
           is_seen_in_tree(args.mask, sequence, first_old_key_seen(args.mask, sequence), key);
  }

  QUIRE_DEVICE void load_blocks(const AttendArgs& args, int first_key, const std::int32_t* ids,
                                unsigned char* to) {
    const KvCacheView& cache = args.cache;
    const auto first_wanted = static_cast<unsigned>(key_begin_ - first_key);  // wraps below 0
    const auto num_wanted = static_cast<unsigned>(key_end_ - key_begin_);
    const bool k_dims = 16 * lane_chunk() < cache.head_dim * kSize;
    const bool v_dims = 16 * lane_chunk() < cache.value_dim * kSize;
    copy_runs<false>(args, first_key, ids, to, [=](int row) {
      const bool wanted = static_cast<unsigned>(row >= 0 ? row : ~row) - first_wanted < num_wanted;
      return wanted & (row >= 0 ? k_dims : v_dims);
    });
  }

  // Runs of 16 keys, which lie in one block each, and the scales of their tokens. wanted(row) says
  // whether a row of K is to be read, wanted(~row) the same of V.
  template <bool kSimple, class Wanted>
  QUIRE_DEVICE void copy_runs(const AttendArgs& args, int first_key, const std::int32_t* ids,
                              unsigned char* to, const Wanted& wanted) {
    const KvCacheView& cache = args.cache;
    const CachePolicy policy = cache_policy(args.keys_exceed_cache);
    const std::int64_t k_step = kRowsPerCopy * kSize * cache.k_strides.token;
    const std::int64_t v_step = kRowsPerCopy * kSize * cache.v_strides.token;
    constexpr int kCopiesPerRun = kRun / kRowsPerCopy;
    QUIRE_UNROLL
    for (int run = 0; run < Tile::kKeys / kRun; ++run) {
      const std::int64_t block = ids[run * kRun];
      const std::int64_t token = first_token<kSimple>(args, first_key + run * kRun);
      const unsigned char* k_at =
          k_lane_ + kSize * strided_offset(cache.k_strides, block, 0, token);
      const unsigned char* v_at =
          v_lane_ + kSize * strided_offset(cache.v_strides, block, 0, token);
      QUIRE_UNROLL
      for (int i = 0; i < kCopiesPerRun; ++i) {
        const int copy = run * kCopiesPerRun + i;
        const int row = copy * kRowsPerCopy + lane_row();
        copy_chunk(to + k_offset(copy), k_at, wanted(row), policy);
        copy_chunk(to + v_offset(copy), v_at, wanted(~row), policy);
        k_at += k_step;
        v_at += v_step;
      }
    }
    if constexpr (!Tile::kIs16Bit) {
      if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
        const int key = first_key + lane_;
        const int token = first_token<kSimple>(args, key & -kRun) + lane_ % kRun;
        load_scales(args, to, {ids[lane_ & -kRun], token},
                    kSimple || ((key >= key_begin_) & (key < key_end_)));
      }
    }
  }

  // The place in its block of a key that begins a run.
  template <bool kSimple>
  QUIRE_DEVICE static int first_token(const AttendArgs& args, int key) {
    const int block_size = args.cache.format.block_size;
    if (kSimple || args.block_shift >= 0) return key & (block_size - 1);
    return static_cast<int>(static_cast<unsigned>(key) % static_cast<unsigned>(block_size));
  }

  QUIRE_DEVICE void load_keys(const AttendArgs& args, const Item& item, int tile,
                              const std::int32_t* ids, unsigned char* to) {
    const KvCacheView& cache = args.cache;
    const Place place = find_place(args, item, tile);
    const int offset = lane_ % Tile::kKeys;
    const bool is_ragged = table_ == nullptr;
    const std::int64_t block =
        is_ragged ? first_source_row_ + tile * Tile::kKeys + offset : std::int64_t{ids[offset]};
    const int token = is_ragged ? 0 : place.token;
    const auto bytes_at = [&](const KvStrides& strides) {
      return place.wanted ? kSize * strided_offset(strides, block, 0, token) : kNowhere;
    };
    if (args.has_equal_strides) {
      copy_rows<true>(args, bytes_at(cache.k_strides), 0, to);
    } else {
      copy_unlike_rows(args, *this, bytes_at(cache.k_strides), bytes_at(cache.v_strides), to);
    }
    if constexpr (!Tile::kIs16Bit) {
      if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
        load_scales(args, to, {block, token}, place.wanted);
      }
    }
  }

  // Rows that lie anywhere: k_own and v_own are where this lane's key begins, or kNowhere.
  template <bool kEqualStrides>
  QUIRE_DEVICE void copy_rows(const AttendArgs& args, std::int64_t k_own, std::int64_t v_own,
                              unsigned char* to) const {
    const bool k_dims = 16 * lane_chunk() < args.cache.head_dim * kSize;
    const bool v_dims = 16 * lane_chunk() < args.cache.value_dim * kSize;
    const CachePolicy policy = cache_policy(args.keys_exceed_cache);
    QUIRE_UNROLL
    for (int copy = 0; copy < kCopies; ++copy) {
      const int row = copy * kRowsPerCopy + lane_row();
      const std::int64_t k_row = shuffle64(k_own, row);
      const std::int64_t v_row = kEqualStrides ? k_row : shuffle64(v_own, row);
      const bool k_wanted = (k_row != kNowhere) & k_dims;
      const bool v_wanted = (v_row != kNowhere) & v_dims;
      copy_chunk(to + k_offset(copy), k_lane_ + (k_wanted ? k_row : 0), k_wanted, policy);
      copy_chunk(to + v_offset(copy), v_lane_ + (v_wanted ? v_row : 0), v_wanted, policy);
    }
  }

  // A function of its own: few caches need it, and its registers are not taken from the others.
  QUIRE_DEVICE_RARE static void copy_unlike_rows(const AttendArgs& args, TileLoader loader,
                                                 std::int64_t k_own, std::int64_t v_own,
                                                 unsigned char* to) {
    loader.template copy_rows<false>(args, k_own, v_own, to);
  }

  QUIRE_DEVICE void load_scales(const AttendArgs& args, unsigned char* to, const KeyPlace& place,
                                bool wanted) const {
    const KvCacheView& cache = args.cache;
    const KvScales& of_values = cache.format.v_in_k ? cache.k_scales : cache.v_scales;
    const std::int64_t block = wanted ? place.block : 0;
    auto* scales = reinterpret_cast<float*>(to + 2 * Tile::kTensorBytes);
    async_copy4(scales + lane_,
                cache.k_scales.data + scale_offset(cache.k_scales, block, kv_head_, place.token),
                wanted);
    async_copy4(scales + Tile::kKeys + lane_,
                of_values.data + scale_offset(of_values, block, kv_head_, place.token), wanted);
  }

  int lane_ = 0;
  int key_begin_ = 0;
  int key_end_ = 0;
  int kv_head_ = 0;
  const std::int32_t* table_ = nullptr;    // of the sequence, or null: a ragged source
  std::int64_t first_source_row_ = 0;      // of a ragged source
  const unsigned char* k_lane_ = nullptr;  // this lane's chunk of its head, before block and token
  const unsigned char* v_lane_ = nullptr;
  std::int32_t* ids_ = nullptr;  // [kSlots, Tile::kKeys] in shared memory
  bool by_blocks_ = false;
};

}  // namespace quire::gpu
