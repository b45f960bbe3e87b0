// SPDX-License-Identifier: Apache-2.0
// Packed rows of an item in the registers of a team, and their running attention: scores from
// products, weights from scores, sums of values. The kernels differ in how keys come to it, and in
// how its rows lie in the fragments (fragment_map.h).
//
// Weights are 2^(score - base). The base of a row need not be its maximum: it rises to it only when
// a weight would pass 2^kSlack, which after the first keys is rare, and until then neither maxima
// are exchanged between lanes nor sums corrected.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/attend_rows.h"
#include "gpu/kernels/fragment_map.h"
#include "gpu/kernels/key_tiles.h"
#include "gpu/kernels/row_states.h"
#include "gpu/kernels/tile_products.h"

namespace quire::gpu {

// Eight numbers of a query that are `stride` apart.
QUIRE_DEVICE_RARE Sixteen gather_query(const std::uint16_t* q, std::int64_t stride) {
  Sixteen piece;
  for (int i = 0; i < 4; ++i) {
    piece.x[i] = q[2 * i * stride] | static_cast<std::uint32_t>(q[(2 * i + 1) * stride]) << 16;
  }
  return piece;
}

// Of 8-bit K and V: those of the tensor or of the head, else 1.
struct HeadScales {
  float k = 1.0F;
  float v = 1.0F;
};
QUIRE_DEVICE float head_scale(const AttendArgs& args, KvTensor tensor, int kv_head) {
  const KvCacheView& cache = args.cache;
  const ScaleGranularity scales = cache.format.scales;
  if (scales != ScaleGranularity::kPerTensor && scales != ScaleGranularity::kPerHead) return 1.0F;
  const bool is_k = tensor == KvTensor::kK || cache.format.v_in_k;
  const KvScales& from = is_k ? cache.k_scales : cache.v_scales;
  return from.data[scale_offset(from, 0, kv_head, 0)];
}

// kTiles key tiles, one behind the other in shared memory, are attended to at a time. Scores that
// are more than scaled products, and trees, only if kGeneral.
template <class Stored, int kDims, int kTiles, class Map, bool kGeneral = true>
struct RowBlock {
  using Tile = KeyTile<Stored, kDims>;
  using Products = TileProducts<Stored, kDims, Map>;
  using Fragment = typename Products::Fragment;
  using Compute = typename Tile::Compute;
  static constexpr int kRows = Map::kRows;
  static constexpr int kSlots = Map::kSlots;
  static constexpr int kKeys = kTiles * Tile::kKeys;
  static constexpr int kSteps = kDims / 16;
  // Rows and keys that go through the scratch at a time.
  static constexpr int kScratchRows = kRows / Map::kBlocks;
  static constexpr int kScratchFloats = kScratchRows * Tile::kKeys;
  struct alignas(8) Keys {
    int begin;
    int end;
  };
  static constexpr int kScratchBytes = kScratchFloats * 4 + kRows * static_cast<int>(sizeof(Keys));
  // Factors of scores: one for all rows, or of 8-bit keys one for each.
  static constexpr int kScales = Tile::kScalesQueries ? kSlots : 1;
  static constexpr float kSlack = 8.0F;
  static constexpr float kUnset = -0x1.fffffep127F;  // the base of a row that saw no key
  using Scores = float[Map::num_scores(kKeys)][4];

  float o[Map::num_values(kDims)][4];  // sums of weighted values, in units of v_unit
  float base[kSlots];                  // of this lane's rows, in powers of 2
  float sum[kSlots];                   // of weights; of this lane's keys alone until finish()
  float row_scale[kScales];            // makes scores of products
  int first_row;                       // of the item
  Keys full;                           // whose scores are scaled products for all rows
  float v_unit[kScales];               // of its own for each row: what others see is not its affair
  bool has_upper;                      // the upper half of the rows

  struct RowPlace {
    int token;  // of the sequence
    int head;   // of the queries
  };
  QUIRE_DEVICE static RowPlace row_place(const AttendArgs& args, const Item& item, int row) {
    const int packed = item.first_row + row;
    const int token = divide(packed, args.by_group);
    return {token, item.kv_head * args.group + (packed - token * args.group)};
  }
  QUIRE_DEVICE int row_of(int slot) const { return first_row + Map::row(slot); }
  // No row of the item lies there.
  QUIRE_DEVICE bool is_empty(int slot) const {
    return Map::kMayLackHalf && slot >= kSlots / 2 && !has_upper;
  }
  QUIRE_DEVICE static constexpr int scale_index(int slot) { return kScales == 1 ? 0 : slot; }
  // What the weights of a row are relative to, -inf if it saw no key.
  QUIRE_DEVICE float maximum(int slot) const {
    return base[slot] == kUnset ? negative_infinity() : base[slot];
  }

  // Rows [first, first + kRows) of the item, as far as it has them. The scratch [kScratchBytes] of
  // the team, in shared memory, is the same in all calls.
  QUIRE_DEVICE void start(const AttendArgs& args, const Item& item, int first, float* scratch,
                          const HeadScales& scales) {
    first_row = first;
    has_upper = item.num_rows > first + kRows / 2;
    find_visible(args, item, scratch);
    // The largest score is the score of the largest product only if the scale is not negative.
    if (is_by_element(args) || args.params.scale < 0.0F) full = {};
    take_scales(args, scales);
  }
  // No key was seen yet.
  QUIRE_DEVICE void clear_state() {
    for_values([this](int n, int i) { o[n][i] = 0.0F; });
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      base[slot] = kUnset;
      sum[slot] = 0.0F;
    }
  }

  // Scores are more than scaled products, or a tree hides keys.
  QUIRE_DEVICE static bool is_by_element(const AttendArgs& args) {
    return args.params.softcap > 0.0F || args.params.alibi_slopes.size != 0 ||
           args.params.bias.rank != 0 || args.batch.tree_mask.begins.size != 0;
  }

  // The keys of the item that a row sees, unless a tree mask says otherwise.
  QUIRE_DEVICE static Keys keys_of_row(const AttendArgs& args, const Item& item, int row) {
    Keys seen{item.key_begin, item.key_end};
    if (item.all_visible || args.alignment != Alignment::kAligned || row >= item.num_rows ||
        args.batch.tree_mask.begins.size != 0) {
      return seen;
    }
    SequenceView sequence;
    sequence.q_len = item.q_len;
    sequence.kv_len = item.kv_len;
    const KeyRange by_mask = positions_seen(
        args.mask, query_position(sequence, row_place(args, item, row).token), item.kv_len);
    if (by_mask.begin > seen.begin) seen.begin = static_cast<int>(by_mask.begin);
    if (by_mask.end < seen.end) seen.end = static_cast<int>(by_mask.end);
    return seen;
  }

  // Loads the queries of the rows in the format of products with 8-bit keys: store(block, step,
  // fragment) for every 16 dims. REQUIRES: RowsDown, where a slot's scores and its query lie in the
  // same lanes.
  template <class Store>
  QUIRE_DEVICE void load_scaled_queries(const AttendArgs& args, const Item& item,
                                        const Store& store) {
    QUIRE_UNROLL
    for (int block = 0; block < Map::kBlocks; ++block) {
      std::int64_t bases[2];
      float inverse[2];
      bool valid[2];
      QUIRE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(2 * block + h);
        valid[h] = row < item.num_rows;
        bases[h] = query_offset(args, item, valid[h] ? row : 0);
        const float factor = query_factor(args, valid[h], bases[h]);
        row_scale[2 * block + h] *= factor;
        inverse[h] = 1.0F / factor;
      }
      QUIRE_UNROLL_4
      for (int step = 0; step < kSteps; ++step) {
        Fragment fragment;
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int h = i % 2;
          float x[2];
          QUIRE_UNROLL
          for (int c = 0; c < 2; ++c) {
            const int dim = Products::query_dim(step, i / 2, c);
            const bool is_dim = valid[h] && dim < args.cache.head_dim;
            x[c] = is_dim ? inverse[h] * load_query(args, bases[h], dim) : 0.0F;
          }
          fragment.x[i] = pack(x[0], x[1], Compute{});
        }
        store(block, step, fragment);
      }
    }
  }
  // Of dim 0 of the query of a row.
  QUIRE_DEVICE static std::int64_t query_offset(const AttendArgs& args, const Item& item, int row) {
    const RowPlace place = row_place(args, item, row);
    return (item.q_begin + static_cast<std::int64_t>(place.token)) * args.q.strides[0] +
           place.head * args.q.strides[1];
  }

  // The power of two that brings the largest number of a query to at most 32768.
  QUIRE_DEVICE static float factor_of_largest(float largest) {
    const std::int32_t exponent = (__builtin_bit_cast(std::int32_t, largest) >> 23) - 14;
    return largest > 0.0F ? __builtin_bit_cast(float, (exponent < 1 ? 1 : exponent) << 23) : 1.0F;
  }

  // Products to weights, and the running state to their base. `tiles` are where the products came
  // from. Returns whether a row of this lane does not see a key that is there. kAllFull: all rows
  // see all keys, and their scores are scaled products.
  template <bool kAllFull = false>
  QUIRE_DEVICE bool weigh(const AttendArgs& args, const Item& item, int first_key,
                          const unsigned char* tiles, float* scratch, Scores& s) {
    const bool per_token = has_token_scales(args);
    if (per_token) {
      for_scores([&](int n, int i) { s[n][i] *= key_scale_at(tiles, Map::key(n, i)); });
    }
    float scale[kScales];
    QUIRE_UNROLL
    for (int i = 0; i < kScales; ++i) scale[i] = row_scale[i];
    bool hides = false;
    if (!kAllFull && QUIRE_UNLIKELY(first_key < full.begin || first_key + kKeys > full.end)) {
      hides = finish_scores(args, item, first_key, scratch, s);
      QUIRE_UNROLL
      for (float& x : scale) x = 1.0F;
    }
    take_weights(scale, s);
    if (per_token) scale_weights(tiles, s);
    return hides;
  }

  QUIRE_DEVICE static bool has_token_scales(const AttendArgs& args) {
    return Tile::kScalesQueries && args.cache.format.scales == ScaleGranularity::kPerTokenHead;
  }
  // Weights times scales have more digits than an f16, which results of more than bf16 would show.
  QUIRE_DEVICE static bool needs_rest_of_weights(const AttendArgs& args) {
    return has_token_scales(args) && args.output.out.dtype != DType::kBF16;
  }
  // What rounding the weights left over.
  QUIRE_DEVICE static void keep_rest(Scores& s) {
    QUIRE_UNROLL
    for (auto& group : s) {
      QUIRE_UNROLL
      for (float& x : group) x -= to_float(from_float<Float16>(x));
    }
  }

  QUIRE_DEVICE static void clear(Scores& s) {
    QUIRE_UNROLL
    for (auto& group : s) {
      QUIRE_UNROLL
      for (float& x : group) x = 0.0F;
    }
  }

  // Scores or weights of a block of rows and one tile's keys to shared memory, [row, key].
  QUIRE_DEVICE static void to_scratch(const Scores& s, int block, int tile, float* scratch) {
    sync_team();  // what was there has been read
    for_scores([&](int n, int i) {
      if (lies_in(n, block, tile)) scratch[scratch_index(n, i)] = s[n][i];
    });
    sync_team();
  }

  // Adds what add_non_finite says, with the weights of a block of rows in the scratch. The
  // accumulators go through memory, so that all other code has them in registers.
  QUIRE_DEVICE void add_non_finite_values(const unsigned char* tile, DType stored,
                                          const float* scratch, int block) {
    float copy[Map::num_values(kDims)][4];
    for_values([&](int n, int i) { copy[n][i] = o[n][i]; });
    add_non_finite<Stored, kDims, Map>(tile, stored, scratch, block, copy);
    for_values([&](int n, int i) { o[n][i] = copy[n][i]; });
  }

  // After the last keys: the lanes of a row agree on its sum.
  QUIRE_DEVICE void finish() {
    QUIRE_UNROLL
    for (float& x : sum) {
      QUIRE_UNROLL
      for (int other = Map::kFirstOther; other <= Map::kLastOther; other *= 2) {
        x += shuffle_xor(x, other);
      }
    }
  }

 private:
  // [kRows], behind the scores in the scratch.
  QUIRE_DEVICE static Keys* ranges(float* scratch) {
    return reinterpret_cast<Keys*>(scratch + kScratchFloats);
  }

  // What each row sees, a row a lane, to the scratch. Both ends grow with the row's position, so
  // that the last row and the first say what all see.
  QUIRE_DEVICE void find_visible(const AttendArgs& args, const Item& item, float* scratch) {
    static_assert(kRows <= kTeam);
    const Keys seen = keys_of_row(args, item, first_row + lane());
    sync_team();  // what was there has been read
    if (lane() < kRows) ranges(scratch)[lane()] = seen;
    const int last = item.num_rows - 1 - first_row;
    full.begin = shuffle(seen.begin, last < 0 ? 0 : last < kRows ? last : kRows - 1);
    full.end = shuffle(seen.end, 0);
    sync_team();
  }

  template <class Use>
  QUIRE_DEVICE static void for_scores(const Use& use) {
    QUIRE_UNROLL
    for (int n = 0; n < Map::num_scores(kKeys); ++n) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) use(n, i);
    }
  }
  template <class Use>
  QUIRE_DEVICE void for_values(const Use& use) {
    QUIRE_UNROLL
    for (int n = 0; n < Map::num_values(kDims); ++n) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) use(n, i);
    }
  }

  // Scales that hold for all keys; those of tokens come with the tiles.
  QUIRE_DEVICE void take_scales(const AttendArgs& args, const HeadScales& scales) {
    const float scale = is_by_element(args) ? 1.0F : args.params.scale * kLog2E;
    QUIRE_UNROLL
    for (float& x : row_scale) x = scale * scales.k;
    QUIRE_UNROLL
    for (float& x : v_unit) x = has_token_scales(args) ? 0x1p-126F : scales.v;
  }

  QUIRE_DEVICE static float load_query(const AttendArgs& args, std::int64_t base, int dim) {
    const std::uint16_t bits =
        static_cast<const std::uint16_t*>(args.q.data)[base + dim * args.q.strides[2]];
    return args.q.dtype == DType::kBF16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
  }
  QUIRE_DEVICE static float query_factor(const AttendArgs& args, bool valid, std::int64_t base) {
    float largest = 0.0F;
    QUIRE_NO_UNROLL
    for (int first = 0; first < args.cache.head_dim; first += 64) {
      QUIRE_UNROLL
      for (int i = 0; i < 16; ++i) {  // loads that do not wait for each other
        const int dim = first + lane() % 4 + 4 * i;
        if (!valid || dim >= args.cache.head_dim) continue;
        largest = max_of(largest, finite_magnitude(load_query(args, base, dim)));
      }
    }
    largest = max_of(largest, shuffle_xor(largest, 1));
    largest = max_of(largest, shuffle_xor(largest, 2));
    return factor_of_largest(largest);
  }

  QUIRE_DEVICE static float key_scale_at(const unsigned char* tiles, int offset) {
    return Tile::key_scale(tiles + offset / Tile::kKeys * Tile::kBytes, offset % Tile::kKeys);
  }
  QUIRE_DEVICE static float value_scale_at(const unsigned char* tiles, int offset) {
    return Tile::value_scale(tiles + offset / Tile::kKeys * Tile::kBytes, offset % Tile::kKeys);
  }

  // Products to scores in powers of two; -inf where hidden.
  QUIRE_DEVICE bool finish_scores(const AttendArgs& args, const Item& item, int first_key,
                                  float* scratch, Scores& s) {
    for_scores([&](int n, int i) { s[n][i] *= row_scale[scale_index(Map::slot(n, i))]; });
    if constexpr (kGeneral) {
      if (is_by_element(args)) finish_by_element(args, item, first_key, scratch, s);
    }
    bool hides = false;
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const Keys seen = ranges(scratch)[Map::row(slot)];
      // Both wrap below 0.
      const auto first_seen = static_cast<unsigned>(seen.begin - first_key);
      const auto num_seen =
          seen.end > seen.begin ? static_cast<unsigned>(seen.end - seen.begin) : 0;
      const auto first_there = static_cast<unsigned>(item.key_begin - first_key);
      const auto num_there = static_cast<unsigned>(item.key_end - item.key_begin);
      const bool is_row = row_of(slot) < item.num_rows;
      for_scores([&](int n, int i) {
        if (Map::slot(n, i) != slot) return;
        const auto key = static_cast<unsigned>(Map::key(n, i));
        if (key - first_seen >= num_seen) s[n][i] = negative_infinity();
        hides =
            hides | ((key - first_there < num_there) & is_row & (s[n][i] == negative_infinity()));
      });
    }
    return hides;
  }

  // Softcap, ALiBi, bias and tree mask, through shared memory so that there is one copy of them.
  QUIRE_DEVICE void finish_by_element(const AttendArgs& args, const Item& item, int first_key,
                                      float* scratch, Scores& s) {
    QUIRE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      QUIRE_UNROLL
      for (int block = 0; block < Map::kBlocks; ++block) {
        to_scratch(s, block, tile, scratch);
        finish_in_scratch(args, item, first_row + block * kScratchRows,
                          first_key + tile * Tile::kKeys, scratch);
        sync_team();
        for_scores([&](int n, int i) {
          if (lies_in(n, block, tile)) s[n][i] = scratch[scratch_index(n, i)];
        });
      }
    }
  }

  QUIRE_DEVICE_RARE static void finish_in_scratch(const AttendArgs& args, const Item& item,
                                                  int first_row, int first_key, float* scratch) {
    const SequenceView sequence = item_sequence(args, item);
    QUIRE_NO_UNROLL
    for (int i = lane(); i < kScratchFloats; i += kTeam) {
      const int row = first_row + i / Tile::kKeys;
      const int key = first_key + i % Tile::kKeys;
      float score = negative_infinity();
      if (row < item.num_rows && key >= item.key_begin && key < item.key_end) {
        const RowPlace place = row_place(args, item, row);
        if (is_row_visible(args, sequence, place.token, key)) {
          score =
              finish_score<float>(args, sequence, item, place.head, place.token, key, scratch[i]);
        }
      }
      scratch[i] = score;
    }
  }

  // Whether accumulator n of the scores is of a block's rows and a tile's keys.
  QUIRE_DEVICE static constexpr bool lies_in(int n, int block, int tile) {
    return Map::block(n) == block && Map::first_key(n) / Tile::kKeys == tile;
  }
  // Where number i of accumulator n of this lane lies in the scratch.
  QUIRE_DEVICE static int scratch_index(int n, int i) {
    return Map::row(Map::slot(n, i)) % kScratchRows * Tile::kKeys + Map::key(n, i) % Tile::kKeys;
  }

  // Scores, but for their factor `scale`, to weights; sums and values to their base.
  QUIRE_DEVICE void take_weights(const float (&scale)[kScales], Scores& s) {
    float largest[kSlots];
    QUIRE_UNROLL
    for (float& x : largest) x = negative_infinity();
    for_scores([&](int n, int i) {
      float& x = largest[Map::slot(n, i)];
      x = max_of(x, s[n][i]);
    });
    float highest = negative_infinity();
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      if (is_empty(slot)) continue;
      highest = max_of(highest, fused(largest[slot], scale[scale_index(slot)], -base[slot]));
    }
    if (QUIRE_UNLIKELY(any(highest > kSlack))) raise_bases(scale, largest);
    for_scores([&](int n, int i) {
      const int slot = Map::slot(n, i);
      if (is_empty(slot)) {
        s[n][i] = 0.0F;
        return;
      }
      s[n][i] = exp2_fast(fused(s[n][i], scale[scale_index(slot)], -base[slot]));
      sum[slot] += s[n][i];
    });
  }

  // `largest` are the rows' largest scores but for their factor, of this lane's keys.
  QUIRE_DEVICE void raise_bases(const float (&scale)[kScales], const float (&largest)[kSlots]) {
    float shrink[kSlots];
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      float top = largest[slot] * scale[scale_index(slot)];
      QUIRE_UNROLL
      for (int other = Map::kFirstOther; other <= Map::kLastOther; other *= 2) {
        top = max_of(top, shuffle_xor(top, other));
      }
      const float larger = max_of(base[slot], top);
      shrink[slot] = exp2_fast(base[slot] - larger);
      base[slot] = larger;
      sum[slot] *= shrink[slot];
    }
    for_values([&](int n, int i) { o[n][i] *= shrink[Map::slot(n, i)]; });
  }

  // Of a power of two whose inverse is no subnormal number.
  QUIRE_DEVICE static float inverse_of_power(float x) {
    return __builtin_bit_cast(float, (254 << 23) - __builtin_bit_cast(std::int32_t, x));
  }

  // Weights times the scales of their values, in units of a power of two that no scale which the
  // row sees exceeds by much. The scale of a key that no row sees may be anything.
  QUIRE_DEVICE void scale_weights(const unsigned char* tiles, Scores& s) {
    float largest[kSlots];
    QUIRE_UNROLL
    for (float& x : largest) x = 0.0F;
    for_scores([&](int n, int i) {
      const float scale = value_scale_at(tiles, Map::key(n, i));
      float& x = largest[Map::slot(n, i)];
      x = max_of(x, s[n][i] != 0.0F ? scale : 0.0F);
    });
    bool is_above = false;
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      is_above = is_above | (largest[slot] > v_unit[scale_index(slot)]);
    }
    if (QUIRE_UNLIKELY(any(is_above))) raise_units(largest);
    float inverse[kScales];
    QUIRE_UNROLL
    for (int i = 0; i < kScales; ++i) inverse[i] = inverse_of_power(v_unit[i]);
    for_scores([&](int n, int i) {
      const float scale =
          value_scale_at(tiles, Map::key(n, i)) * inverse[scale_index(Map::slot(n, i))];
      s[n][i] = s[n][i] != 0.0F ? s[n][i] * scale : 0.0F;
    });
  }

  // `largest` are the largest scales that the rows see, of this lane's keys.
  QUIRE_DEVICE void raise_units(const float (&largest)[kSlots]) {
    float change[kSlots];
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      float top = largest[slot];
      QUIRE_UNROLL
      for (int other = Map::kFirstOther; other <= Map::kLastOther; other *= 2) {
        top = max_of(top, shuffle_xor(top, other));
      }
      float& unit = v_unit[scale_index(slot)];
      const std::int32_t exponent = (__builtin_bit_cast(std::int32_t, top) >> 23) + 1;
      const float higher = __builtin_bit_cast(float, (exponent > 253 ? 253 : exponent) << 23);
      change[slot] = top > unit ? unit / higher : 1.0F;
      unit = top > unit ? higher : unit;
    }
    for_values([&](int n, int i) { o[n][i] *= change[Map::slot(n, i)]; });
  }
};

}  // namespace quire::gpu
