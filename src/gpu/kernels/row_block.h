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

// kTiles key tiles, one behind the other in shared memory, are attended to at a time.
template <class Stored, int kDims, int kTiles, class Map>
struct RowBlock {
  using Tile = KeyTile<Stored, kDims>;
  using Products = TileProducts<Stored, kDims, Map>;
  using Fragment = typename Products::Fragment;
  using Compute = typename Tile::Compute;
  static constexpr int kRows = Map::kRows;
  static constexpr int kSlots = Map::kSlots;
  static constexpr int kKeys = kTiles * Tile::kKeys;
  static constexpr int kSteps = kDims / 16;
  static constexpr int kScratchFloats = kRows * kKeys;
  static constexpr float kSlack = 8.0F;
  static constexpr float kUnset = -0x1.fffffep127F;  // the base of a row that saw no key
  using Scores = float[Map::num_scores(kKeys)][4];

  float o[Map::num_values(kDims)][4];  // sums of weighted values, to be multiplied by v_unit
  float base[kSlots];                  // of this lane's rows, in powers of 2
  float sum[kSlots];                   // of weights; of this lane's keys alone until finish()
  float row_scale[kSlots];             // makes scores of products
  int begin[kSlots];  // keys that the rows may see, unless a tree mask says otherwise
  int end[kSlots];
  int first_row;   // of the item
  int full_begin;  // keys that all rows see
  int full_end;
  float v_unit;
  bool has_upper;   // rows 8 to 15
  bool by_element;  // scores are more than scaled products, or a tree hides keys

  struct RowPlace {
    int token;  // of the sequence
    int head;   // of the queries
  };
  QUIRE_DEVICE static RowPlace row_place(const AttendArgs& args, const Item& item, int row) {
    const int packed = item.first_row + row;
    const int token = item.q_len == 1 ? 0 : packed / args.group;
    return {token, item.kv_head * args.group + (packed - token * args.group)};
  }
  QUIRE_DEVICE int row_of(int slot) const { return first_row + Map::row(slot); }
  // No row of the item lies there.
  QUIRE_DEVICE bool is_empty(int slot) const { return Map::half(slot) == 1 && !has_upper; }
  // What the weights of a row are relative to, -inf if it saw no key.
  QUIRE_DEVICE float maximum(int slot) const {
    return base[slot] == kUnset ? negative_infinity() : base[slot];
  }

  // Rows [first, first + kRows) of the item, as far as it has them.
  QUIRE_DEVICE void start(const AttendArgs& args, const Item& item, int first) {
    first_row = first;
    has_upper = item.num_rows > first + 8;
    QUIRE_UNROLL
    for (auto& group : o) {
      QUIRE_UNROLL
      for (float& x : group) x = 0.0F;
    }
    by_element = args.params.softcap > 0.0F || args.params.alibi_slopes.size != 0 ||
                 args.params.bias.rank != 0 || args.batch.tree_mask.begins.size != 0;
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      base[slot] = kUnset;
      sum[slot] = 0.0F;
      begin[slot] = item.key_begin;
      end[slot] = item.key_end;
    }
    full_begin = by_element ? item.key_end : item.key_begin;
    full_end = item.key_end;
    if (!item.all_visible) find_visible(args, item);
    load_scales(args, item);
  }

  QUIRE_DEVICE void find_visible(const AttendArgs& args, const Item& item) {
    const SequenceView sequence = item_sequence(args, item);
    int all_begin = item.key_begin;
    int all_end = item.key_end;
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const int row = row_of(slot);
      if (row >= item.num_rows) continue;
      if (args.alignment == Alignment::kAligned && sequence.tree_bits == nullptr) {
        const KeyRange seen = positions_seen(
            args.mask, query_position(sequence, row_place(args, item, row).token), item.kv_len);
        begin[slot] = static_cast<int>(seen.begin);
        end[slot] = static_cast<int>(seen.end);
      }
      if (begin[slot] > all_begin) all_begin = begin[slot];
      if (end[slot] < all_end) all_end = end[slot];
    }
    QUIRE_UNROLL
    for (int step = 1; step < kTeam; step *= 2) {
      const int other_begin = shuffle_xor(all_begin, step);
      const int other_end = shuffle_xor(all_end, step);
      all_begin = other_begin > all_begin ? other_begin : all_begin;
      all_end = other_end < all_end ? other_end : all_end;
    }
    if (!by_element) full_begin = all_begin;
    full_end = all_end;
  }

  // Loads the queries of the rows: store(step, fragment) for every 16 dims. REQUIRES: RowsDown,
  // where a slot's scores and its query lie in the same lanes.
  template <class Store>
  QUIRE_DEVICE void load_queries(const AttendArgs& args, const Item& item, const Store& store) {
    std::int64_t bases[kSlots];
    float inverse[kSlots];
    bool valid[kSlots];
    QUIRE_UNROLL
    for (int h = 0; h < kSlots; ++h) {
      valid[h] = row_of(h) < item.num_rows;
      const RowPlace place = row_place(args, item, valid[h] ? row_of(h) : 0);
      bases[h] = (item.q_begin + static_cast<std::int64_t>(place.token)) * args.q.strides[0] +
                 place.head * args.q.strides[1];
      inverse[h] = 1.0F;
      if constexpr (Tile::kScalesQueries) {
        const float factor = query_factor(args, valid[h], bases[h]);
        row_scale[h] *= factor;
        inverse[h] = 1.0F / factor;
      }
    }
    QUIRE_NO_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      Fragment fragment;
      QUIRE_UNROLL
      for (int i = 0; i < 2 * kSlots; ++i) {
        const int h = i % kSlots;
        float x[2];
        QUIRE_UNROLL
        for (int c = 0; c < 2; ++c) {
          const int dim = Products::query_dim(step, i / kSlots, c);
          const bool is_dim = valid[h] && dim < args.cache.head_dim;
          x[c] =
              is_dim ? inverse[h] * load_query(args.q, bases[h] + dim * args.q.strides[2]) : 0.0F;
        }
        fragment.x[i] = pack(x[0], x[1], Compute{});
      }
      store(step, fragment);
    }
  }

  // The power of two that brings the largest number of a query to at most 32768.
  QUIRE_DEVICE static float factor_of_largest(float largest) {
    const std::int32_t exponent = (__builtin_bit_cast(std::int32_t, largest) >> 23) - 14;
    return largest > 0.0F ? __builtin_bit_cast(float, (exponent < 1 ? 1 : exponent) << 23) : 1.0F;
  }

  // Products to weights, and the running state to their base. `tiles` are where the products came
  // from. Returns whether a row of this lane does not see a key that is there.
  QUIRE_DEVICE bool weigh(const AttendArgs& args, const Item& item, int first_key,
                          const unsigned char* tiles, float* scratch, Scores& s) {
    const bool per_token = has_token_scales(args);
    if (per_token) {
      for_scores([&](int n, int i) { s[n][i] *= key_scale_at(tiles, Map::key(n, i)); });
    }
    float scale[kSlots];
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) scale[slot] = row_scale[slot];
    bool hides = false;
    if (first_key < full_begin || first_key + kKeys > full_end) {
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

  // Scores or weights to shared memory, [row, key].
  QUIRE_DEVICE static void to_scratch(const Scores& s, float* scratch) {
    sync_team();  // what was there has been read
    for_scores([&](int n, int i) { scratch[scratch_index(n, i)] = s[n][i]; });
    sync_team();
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
  QUIRE_DEVICE void load_scales(const AttendArgs& args, const Item& item) {
    const KvCacheView& cache = args.cache;
    float scale = by_element ? 1.0F : args.params.scale * kLog2E;
    v_unit = 1.0F;
    if constexpr (Tile::kScalesQueries) {
      const ScaleGranularity scales = cache.format.scales;
      if (scales == ScaleGranularity::kPerTokenHead) {
        v_unit = 0x1p-126F;
      } else if (scales != ScaleGranularity::kNone) {
        const KvScales& of_values = cache.format.v_in_k ? cache.k_scales : cache.v_scales;
        scale *= cache.k_scales.data[scale_offset(cache.k_scales, 0, item.kv_head, 0)];
        v_unit = of_values.data[scale_offset(of_values, 0, item.kv_head, 0)];
      }
    }
    QUIRE_UNROLL
    for (float& x : row_scale) x = scale;
  }

  QUIRE_DEVICE static float query_factor(const AttendArgs& args, bool valid, std::int64_t base) {
    float largest = 0.0F;
    QUIRE_NO_UNROLL
    for (int first = 0; first < args.cache.head_dim; first += 64) {
      QUIRE_UNROLL
      for (int i = 0; i < 16; ++i) {  // loads that do not wait for each other
        const int dim = first + lane() % 4 + 4 * i;
        if (!valid || dim >= args.cache.head_dim) continue;
        largest =
            max_of(largest, finite_magnitude(load_query(args.q, base + dim * args.q.strides[2])));
      }
    }
    largest = max_of(largest, shuffle_xor(largest, 1));
    largest = max_of(largest, shuffle_xor(largest, 2));
    return factor_of_largest(largest);
  }

  QUIRE_DEVICE static float load_query(const TensorView& q, std::int64_t at) {
    const std::uint16_t bits = static_cast<const std::uint16_t*>(q.data)[at];
    if constexpr (Tile::kScalesQueries) {
      return q.dtype == DType::kBF16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
    } else {
      return to_float(Compute{bits});
    }
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
    for_scores([&](int n, int i) { s[n][i] *= row_scale[Map::slot(n, i)]; });
    if (by_element) finish_by_element(args, item, first_key, scratch, s);
    const auto first_there = static_cast<unsigned>(item.key_begin);
    const auto num_there = static_cast<unsigned>(item.key_end - item.key_begin);
    bool hides = false;
    for_scores([&](int n, int i) {
      const int slot = Map::slot(n, i);
      const int key = first_key + Map::key(n, i);
      const bool is_there = static_cast<unsigned>(key) - first_there < num_there;
      const bool sees = is_there & (key >= begin[slot]) & (key < end[slot]);
      s[n][i] = sees ? s[n][i] : negative_infinity();
      hides =
          hides | (is_there & (row_of(slot) < item.num_rows) & (s[n][i] == negative_infinity()));
    });
    return hides;
  }

  // Softcap, ALiBi, bias and tree mask, through shared memory so that there is one copy of them.
  QUIRE_DEVICE void finish_by_element(const AttendArgs& args, const Item& item, int first_key,
                                      float* scratch, Scores& s) {
    to_scratch(s, scratch);
    finish_in_scratch(args, item, first_row, first_key, scratch);
    sync_team();
    for_scores([&](int n, int i) { s[n][i] = scratch[scratch_index(n, i)]; });
  }

  QUIRE_DEVICE_RARE static void finish_in_scratch(const AttendArgs& args, const Item& item,
                                                  int first_row, int first_key, float* scratch) {
    const SequenceView sequence = item_sequence(args, item);
    QUIRE_NO_UNROLL
    for (int i = lane(); i < kScratchFloats; i += kTeam) {
      const int row = first_row + i / kKeys;
      const int key = first_key + i % kKeys;
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

  // Where number i of accumulator n of this lane lies in the scratch.
  QUIRE_DEVICE static int scratch_index(int n, int i) {
    return Map::row(Map::slot(n, i)) * kKeys + Map::key(n, i);
  }

  // Scores, but for their factor `scale`, to weights; sums and values to their base.
  QUIRE_DEVICE void take_weights(const float (&scale)[kSlots], Scores& s) {
    float highest = negative_infinity();
    for_scores([&](int n, int i) {
      const int slot = Map::slot(n, i);
      if (!is_empty(slot)) highest = max_of(highest, fused(s[n][i], scale[slot], -base[slot]));
    });
    if (any(highest > kSlack)) raise_bases(scale, s);
    for_scores([&](int n, int i) {
      const int slot = Map::slot(n, i);
      if (is_empty(slot)) {
        s[n][i] = 0.0F;
        return;
      }
      s[n][i] = exp2_fast(fused(s[n][i], scale[slot], -base[slot]));
      sum[slot] += s[n][i];
    });
  }

  QUIRE_DEVICE void raise_bases(const float (&scale)[kSlots], const Scores& s) {
    float largest[kSlots];
    QUIRE_UNROLL
    for (float& x : largest) x = negative_infinity();
    for_scores([&](int n, int i) {
      float& x = largest[Map::slot(n, i)];
      x = max_of(x, s[n][i] * scale[Map::slot(n, i)]);
    });
    float shrink[kSlots];
    QUIRE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      QUIRE_UNROLL
      for (int other = Map::kFirstOther; other <= Map::kLastOther; other *= 2) {
        largest[slot] = max_of(largest[slot], shuffle_xor(largest[slot], other));
      }
      const float larger = max_of(base[slot], largest[slot]);
      shrink[slot] = exp2_fast(base[slot] - larger);
      base[slot] = larger;
      sum[slot] *= shrink[slot];
    }
    for_values([&](int n, int i) { o[n][i] *= shrink[Map::slot(n, i)]; });
  }

  // Weights times the scales of their values, in units of a power of two that no scale exceeds. The
  // scale of a key that no row sees may be anything.
  QUIRE_DEVICE void scale_weights(const unsigned char* tiles, Scores& s) {
    float largest = 0.0F;
    for_scores([&](int n, int i) {
      const float scale = value_scale_at(tiles, Map::key(n, i));
      largest = max_of(largest, s[n][i] != 0.0F ? scale : 0.0F);
    });
    largest = team_max(largest);
    if (largest > v_unit) {
      const std::int32_t exponent = (__builtin_bit_cast(std::int32_t, largest) >> 23) + 1;
      const float unit = __builtin_bit_cast(float, (exponent > 254 ? 254 : exponent) << 23);
      const float change = v_unit / unit;
      v_unit = unit;
      for_values([&](int n, int i) { o[n][i] *= change; });
    }
    const float inverse = 1.0F / v_unit;
    for_scores([&](int n, int i) {
      const float scale = value_scale_at(tiles, Map::key(n, i)) * inverse;
      s[n][i] = s[n][i] != 0.0F ? s[n][i] * scale : 0.0F;
    });
  }
};

}  // namespace quire::gpu
