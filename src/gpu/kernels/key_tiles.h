// SPDX-License-Identifier: Apache-2.0
// Tiles of keys and values in shared memory: how they get there from any paged cache, and the two
// products with them. A tile holds the K rows of kKeys keys, then their V rows, then (8-bit only)
// their scales; rows are padded to kDims. 16-byte chunks of a row are permuted by its key so that
// neither copies nor matrix loads meet in a bank.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/attend_rows.h"

namespace quire::gpu {

// The left side of a product, 16 rows by 16.
using Fragment = Sixteen;

template <class Stored, int kDims>
struct KeyTile {
  static constexpr bool kIs16Bit = sizeof(Stored) == 2;
  static constexpr int kKeys = kIs16Bit ? 16 : 32;
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
  static constexpr int kSteps = kDims / 16;

  QUIRE_DEVICE static int k_chunk(int key, int chunk) {
    return chunk ^ (kIs16Bit ? key & 7 : (key & 1) << 2 & (kChunks - 1));
  }
  QUIRE_DEVICE static int v_chunk(int key, int chunk) {
    return chunk ^ (kIs16Bit ? key & 7 : (key >> 1 & 3) << 1 & (kChunks - 1));
  }

  // The dim that number c of half `half` of a query's register in step `step` stands for; 8-bit
  // keys are read 16 neighbouring dims at a time.
  QUIRE_DEVICE static int query_dim(int step, int quarter, int half, int c) {
    if constexpr (kIs16Bit) return 16 * step + 8 * half + 2 * quarter + c;
    return step / 4 * 64 + quarter * 16 + step % 4 * 4 + 2 * half + c;
  }
  // The dim of column `column` of group n of the values.
  QUIRE_DEVICE static int value_dim(int n, int column) {
    if constexpr (kIs16Bit) return 8 * n + column;
    return n / 4 * 32 + 4 * column + n % 4;
  }

  QUIRE_DEVICE static float key_scale(const unsigned char* tile, int key) {
    return reinterpret_cast<const float*>(tile + 2 * kTensorBytes)[key];
  }
  QUIRE_DEVICE static float value_scale(const unsigned char* tile, int key) {
    return reinterpret_cast<const float*>(tile + 2 * kTensorBytes)[kKeys + key];
  }

  // s += Q K^T for kBlocks blocks of 16 rows: q(block, step) is a fragment of Q for 16 dims,
  // s(block, n) the scores of the rows of a block and of keys 8 * n and on.
  template <int kBlocks, class Queries, class Scores>
  QUIRE_DEVICE static void multiply_keys(const unsigned char* tile, const Queries& q,
                                         const Scores& s) {
    if constexpr (kIs16Bit) {
      QUIRE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        // Keys 0-7 of the lower and the upper eight dims, then keys 8-15.
        const int key = lane() % 8 + lane() / 16 * 8;
        const int chunk = 2 * step + lane() / 8 % 2;
        std::uint32_t r[4];
        load_matrices(r, tile + key * kRowBytes + 16 * k_chunk(key, chunk));
        QUIRE_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
          const Fragment a = q(block, step);
          multiply_add(s(block, 0), a.x, r[0], r[1], Compute{});
          multiply_add(s(block, 1), a.x, r[2], r[3], Compute{});
        }
      }
    } else {
      QUIRE_UNROLL
      for (int part = 0; part < kDims / 64; ++part) {
        Sixteen keys[kKeys / 8];
        QUIRE_UNROLL
        for (int n = 0; n < kKeys / 8; ++n) {
          const int key = 8 * n + lane() / 4;
          keys[n] = *reinterpret_cast<const Sixteen*>(tile + key * kRowBytes +
                                                      16 * k_chunk(key, 4 * part + lane() % 4));
        }
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          QUIRE_UNROLL
          for (int block = 0; block < kBlocks; ++block) {
            const Fragment a = q(block, 4 * part + i);
            QUIRE_UNROLL
            for (int n = 0; n < kKeys / 8; ++n) {
              multiply_add(s(block, n), a.x, two_halves(keys[n].x[i], 0, Stored{}),
                           two_halves(keys[n].x[i], 1, Stored{}), Compute{});
            }
          }
        }
      }
    }
  }

  // The weights of 16 keys as the left side of a product.
  QUIRE_DEVICE static void pack_weights(const float (&low)[4], const float (&high)[4],
                                        std::uint32_t (&p)[4]) {
    p[0] = pack(low[0], low[1], Compute{});
    p[1] = pack(low[2], low[3], Compute{});
    p[2] = pack(high[0], high[1], Compute{});
    p[3] = pack(high[2], high[3], Compute{});
  }

  // o += P V; p(block, n) are weights as s above, o(block, n) the values of dims 8 * n and on.
  template <int kBlocks, class Weights, class Values>
  QUIRE_DEVICE static void multiply_values(const unsigned char* tile, const Weights& weights,
                                           const Values& o) {
    const unsigned char* values = tile + kTensorBytes;
    QUIRE_UNROLL
    for (int half = 0; half < kKeys / 16; ++half) {
      std::uint32_t p[kBlocks][4];
      QUIRE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        pack_weights(weights(block, 2 * half), weights(block, 2 * half + 1), p[block]);
      }
      if constexpr (kIs16Bit) {
        QUIRE_UNROLL
        for (int n = 0; n < kDims / 16; ++n) {
          // Keys 0-7 and 8-15 of the lower eight dims, then of the upper eight.
          const int key = lane() % 16;
          std::uint32_t r[4];
          load_matrices_transposed(
              r, values + key * kRowBytes + 16 * v_chunk(key, 2 * n + lane() / 16));
          QUIRE_UNROLL
          for (int block = 0; block < kBlocks; ++block) {
            multiply_add(o(block, 2 * n), p[block], r[0], r[1], Compute{});
            multiply_add(o(block, 2 * n + 1), p[block], r[2], r[3], Compute{});
          }
        }
      } else {
        QUIRE_UNROLL
        for (int part = 0; part < kDims / 32; ++part) {
          std::uint32_t words[4];  // four dims of each of four keys
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int key = 16 * half + 2 * (lane() % 4) + i % 2 + 8 * (i / 2);
            const int chunk = v_chunk(key, 2 * part + lane() / 16);
            words[i] = *reinterpret_cast<const std::uint32_t*>(values + key * kRowBytes +
                                                               16 * chunk + lane() / 4 % 4 * 4);
          }
          QUIRE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const std::uint32_t selector = static_cast<std::uint32_t>(i | (4 + i) << 4);
            const std::uint32_t low =
                two_halves(select_bytes(words[0], words[1], selector), 0, Stored{});
            const std::uint32_t high =
                two_halves(select_bytes(words[2], words[3], selector), 0, Stored{});
            QUIRE_UNROLL
            for (int block = 0; block < kBlocks; ++block) {
              multiply_add(o(block, 4 * part + i), p[block], low, high, Compute{});
            }
          }
        }
      }
    }
  }

  QUIRE_DEVICE static float value_at(const unsigned char* tile, int key, int dim) {
    const int byte = dim * static_cast<int>(sizeof(Stored));
    const unsigned char* row = tile + kTensorBytes + key * kRowBytes;
    return to_float(
        *reinterpret_cast<const Stored*>(row + 16 * v_chunk(key, byte / 16) + byte % 16));
  }

  // Whether a value of the tile is infinite or NaN; the same for all lanes.
  QUIRE_DEVICE static bool has_non_finite_values(const unsigned char* tile) {
    bool found = false;
    QUIRE_NO_UNROLL
    for (int i = lane(); i < kKeys * kDims; i += kTeam) {
      const float x = value_at(tile, i / kDims, i % kDims);
      found = found || !(x - x == 0.0F);
    }
    return any(found);
  }

  // Adds the values of keys that have an infinite or NaN one, leaving out weights of 0: where some
  // row does not see such a key, 0 * NaN must not reach it. weights [16, stride] are in shared
  // memory, those of this tile's first key first.
  QUIRE_DEVICE static void add_non_finite(const unsigned char* tile, const float* weights,
                                          int stride, float (&o)[kDims / 8][4]) {
    QUIRE_NO_UNROLL
    for (int key = 0; key < kKeys; ++key) {
      if (!is_non_finite(tile, key)) continue;
      const float lower = weights[lane() / 4 * stride + key];
      const float upper = weights[(lane() / 4 + 8) * stride + key];
      QUIRE_UNROLL
      for (int n = 0; n < kDims / 8; ++n) {
        QUIRE_UNROLL
        for (int c = 0; c < 2; ++c) {
          const float value = value_at(tile, key, value_dim(n, 2 * (lane() % 4) + c));
          if (lower != 0.0F) o[n][c] += lower * value;
          if (upper != 0.0F) o[n][2 + c] += upper * value;
        }
      }
    }
  }
  // Makes the values of those keys zeros, when all have been added.
  QUIRE_DEVICE static void clear_non_finite(unsigned char* tile) {
    QUIRE_NO_UNROLL
    for (int key = 0; key < kKeys; ++key) {
      if (!is_non_finite(tile, key)) continue;
      sync_team();
      for (int chunk = lane(); chunk < kChunks; chunk += kTeam) {
        *reinterpret_cast<Sixteen*>(tile + kTensorBytes + key * kRowBytes + 16 * chunk) = {};
      }
      sync_team();
    }
  }
  // Whether a value of the key is infinite or NaN; the same for all lanes.
  QUIRE_DEVICE static bool is_non_finite(const unsigned char* tile, int key) {
    bool found = false;
    QUIRE_NO_UNROLL
    for (int dim = lane(); dim < kDims; dim += kTeam) {
      const float x = value_at(tile, key, dim);
      found = found || !(x - x == 0.0F);
    }
    return any(found);
  }
};

// Brings tiles of an item's keys to shared memory, by one team. Keys outside the item, or that no
// row sees, are zeros: they may lie nowhere.
template <class Stored, int kDims>
class TileLoader {
 public:
  using Tile = KeyTile<Stored, kDims>;

  QUIRE_DEVICE void begin(const AttendArgs& args, const Item& item) {
    key_begin_ = item.key_begin;
    key_end_ = item.key_end;
    kv_head_ = item.kv_head;
    table_begin_ = item.table_begin;
    // Sixteen keys in a row lie in one block: their addresses follow from the first.
    by_blocks_ = args.batch.kv.blocks.kind != BlockTables::Kind::kRagged &&
                 args.cache.format.block_size % kRun == 0 && args.batch.tree_mask.begins.size == 0;
    const KvCacheView& cache = args.cache;
    const int chunk = lane() % Tile::kChunks;
    const int row = lane() / Tile::kChunks;
    k_lane_ = static_cast<const unsigned char*>(cache.k) + 16 * chunk +
              kSize * (kv_head_ * cache.k_strides.head + row * cache.k_strides.token);
    v_lane_ = static_cast<const unsigned char*>(cache.format.v_in_k ? cache.k : cache.v) +
              16 * chunk + kSize * (kv_head_ * cache.v_strides.head + row * cache.v_strides.token);
  }

  // Reads the block of this lane's key of a tile, for the load that follows.
  QUIRE_DEVICE void look_up(const AttendArgs& args, const Item& item, int tile) {
    const int run = by_blocks_ ? kRun : 1;
    const int key = tile * Tile::kKeys + lane() % Tile::kKeys / run * run;
    bool wanted = (key < key_end_) & (key + run > key_begin_);
    if (wanted && args.batch.tree_mask.begins.size != 0) {
      const SequenceView sequence = item_sequence(args, item);
      wanted = sequence.tree_bits == nullptr ||
               is_seen_in_tree(args.mask, sequence, first_old_key_seen(args.mask, sequence), key);
    }
    place_ = wanted ? key_place(args, table_begin_, key) : KeyPlace{-1, 0};
  }

  // Starts the copy of the tile that was looked up, then looks up the next.
  QUIRE_DEVICE void load(const AttendArgs& args, const Item& item, int tile, unsigned char* to,
                         int next_tile) {
    if (tile * Tile::kKeys < key_end_) {
      if (by_blocks_) {
        load_blocks(args, tile * Tile::kKeys, to);
      } else {
        load_keys(args, to);
      }
    }
    async_commit();
    look_up(args, item, next_tile);
  }

 private:
  static constexpr int kRun = 16;
  static constexpr std::int64_t kNowhere = INT64_MIN;  // strides may be negative
  static constexpr std::int64_t kSize = sizeof(Stored);
  static constexpr int kCopies = Tile::kKeys * Tile::kChunks / kTeam;
  static constexpr int kRowsPerCopy = kTeam / Tile::kChunks;
  static_assert(kRowsPerCopy >= 1 && kTeam % Tile::kChunks == 0);

  QUIRE_DEVICE static std::int64_t row_bytes_at(const KvStrides& strides, const KeyPlace& place,
                                                int head) {
    return kSize *
           (place.block * strides.block + head * strides.head + place.token * strides.token);
  }

  QUIRE_DEVICE void load_blocks(const AttendArgs& args, int first_key, unsigned char* to) {
    const KvCacheView& cache = args.cache;
    const bool whole = (first_key >= key_begin_) & (first_key + Tile::kKeys <= key_end_);
    const bool whole_rows =
        (cache.head_dim * kSize == Tile::kRowBytes) & (cache.value_dim * kSize == Tile::kRowBytes);
    if (whole & whole_rows) {
      copy_blocks(args, to, [](int) { return true; });
    } else {
      const int chunk = lane() % Tile::kChunks;
      const auto first_wanted = static_cast<unsigned>(key_begin_ - first_key);  // wraps below 0
      const auto num_wanted = static_cast<unsigned>(key_end_ - key_begin_);
      const bool k_dims = 16 * chunk < cache.head_dim * kSize;
      const bool v_dims = 16 * chunk < cache.value_dim * kSize;
      copy_blocks(args, to, [=](int row) {
        const bool wanted =
            static_cast<unsigned>(row >= 0 ? row : ~row) - first_wanted < num_wanted;
        return wanted & (row >= 0 ? k_dims : v_dims);
      });
    }
    if constexpr (!Tile::kIs16Bit) {
      if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
        const int key = first_key + lane();
        load_scales(args, to, {place_.block, place_.token + lane() % kRun},
                    (key >= key_begin_) & (key < key_end_));
      }
    }
  }

  // wanted(row) says whether a row of K is to be read, wanted(~row) the same of V.
  template <class Wanted>
  QUIRE_DEVICE void copy_blocks(const AttendArgs& args, unsigned char* to, const Wanted& wanted) {
    const KvCacheView& cache = args.cache;
    const std::int64_t k_step = kRowsPerCopy * kSize * cache.k_strides.token;
    const std::int64_t v_step = kRowsPerCopy * kSize * cache.v_strides.token;
    const std::int64_t k_own =
        kSize * (place_.block * cache.k_strides.block + place_.token * cache.k_strides.token);
    const std::int64_t v_own =
        kSize * (place_.block * cache.v_strides.block + place_.token * cache.v_strides.token);
    const int chunk = lane() % Tile::kChunks;
    const int first_row = lane() / Tile::kChunks;
    QUIRE_UNROLL
    for (int run = 0; run < Tile::kKeys / kRun; ++run) {
      // Lanes 16 * run and on looked up this run.
      const unsigned char* k_at =
          k_lane_ + (Tile::kKeys == kRun ? k_own : shuffle64(k_own, run * kRun));
      const unsigned char* v_at =
          v_lane_ + (Tile::kKeys == kRun ? v_own : shuffle64(v_own, run * kRun));
      QUIRE_UNROLL
      for (int i = 0; i < kRun / kRowsPerCopy; ++i) {
        const int row = run * kRun + i * kRowsPerCopy + first_row;
        async_copy16(to + row * Tile::kRowBytes + 16 * Tile::k_chunk(row, chunk), k_at,
                     wanted(row));
        async_copy16(
            to + Tile::kTensorBytes + row * Tile::kRowBytes + 16 * Tile::v_chunk(row, chunk), v_at,
            wanted(~row));
        k_at += k_step;
        v_at += v_step;
      }
    }
  }

  QUIRE_DEVICE void load_keys(const AttendArgs& args, unsigned char* to) {
    const KvCacheView& cache = args.cache;
    const auto* k = static_cast<const unsigned char*>(cache.k);
    const auto* v = static_cast<const unsigned char*>(cache.format.v_in_k ? cache.k : cache.v);
    const bool wanted = place_.block >= 0;
    const std::int64_t k_own = wanted ? row_bytes_at(cache.k_strides, place_, kv_head_) : kNowhere;
    const std::int64_t v_own = wanted ? row_bytes_at(cache.v_strides, place_, kv_head_) : kNowhere;
    const int chunk = lane() % Tile::kChunks;
    const bool k_dims = 16 * chunk < cache.head_dim * kSize;
    const bool v_dims = 16 * chunk < cache.value_dim * kSize;
    QUIRE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      const int row = i * kRowsPerCopy + lane() / Tile::kChunks;
      const std::int64_t k_row = shuffle64(k_own, row);
      const std::int64_t v_row = shuffle64(v_own, row);
      const bool k_wanted = (k_row != kNowhere) & k_dims;
      const bool v_wanted = (v_row != kNowhere) & v_dims;
      async_copy16(to + row * Tile::kRowBytes + 16 * Tile::k_chunk(row, chunk),
                   k + (k_wanted ? k_row : 0) + 16 * chunk, k_wanted);
      async_copy16(to + Tile::kTensorBytes + row * Tile::kRowBytes + 16 * Tile::v_chunk(row, chunk),
                   v + (v_wanted ? v_row : 0) + 16 * chunk, v_wanted);
    }
    if constexpr (!Tile::kIs16Bit) {
      if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
        load_scales(args, to, place_, wanted);
      }
    }
  }

  QUIRE_DEVICE void load_scales(const AttendArgs& args, unsigned char* to, const KeyPlace& place,
                                bool wanted) const {
    const KvCacheView& cache = args.cache;
    const KvScales& of_values = cache.format.v_in_k ? cache.k_scales : cache.v_scales;
    const std::int64_t block = wanted ? place.block : 0;
    auto* scales = reinterpret_cast<float*>(to + 2 * Tile::kTensorBytes);
    async_copy4(scales + lane(),
                cache.k_scales.data + scale_offset(cache.k_scales, block, kv_head_, place.token),
                wanted);
    async_copy4(scales + Tile::kKeys + lane(),
                of_values.data + scale_offset(of_values, block, kv_head_, place.token), wanted);
  }

  int key_begin_ = 0;
  int key_end_ = 0;
  int kv_head_ = 0;
  std::int64_t table_begin_ = 0;
  const unsigned char* k_lane_ = nullptr;  // this lane's chunk of its first row, before the block
  const unsigned char* v_lane_ = nullptr;
  KeyPlace place_{-1, 0};
  bool by_blocks_ = false;
};

}  // namespace quire::gpu
