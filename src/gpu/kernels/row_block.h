// SPDX-License-Identifier: Apache-2.0
// Sixteen packed rows of an item in the registers of a team, and their running attention: scores
// from products, weights from scores, sums of values. The kernels differ in how keys come to it.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/attend_rows.h"
#include "gpu/kernels/key_tiles.h"
#include "gpu/kernels/row_states.h"

namespace quire::gpu {

inline constexpr int kBlockRows = 16;

// kTiles key tiles, one behind the other in shared memory, are attended to at a time.
template <class Stored, int kDims, int kTiles>
struct RowBlock {
  using Tile = KeyTile<Stored, kDims>;
  using Compute = typename Tile::Compute;
  static constexpr int kKeys = kTiles * Tile::kKeys;
  static constexpr int kGroups = kKeys / 8;
  static constexpr int kSteps = kDims / 16;
  static constexpr int kScratchFloats = kBlockRows * kKeys;
  using Scores = float[kGroups][4];

  float o[kDims / 8][4];  // sums of weighted values, to be multiplied by v_unit
  float maximum[2];       // of rows l / 4 and l / 4 + 8, in powers of 2
  float sum[2];           // of weights; of this lane's keys alone until finish()
  float factor[2];        // of products: powers of two that undo the scaling of the queries
  int begin[2];           // keys that the rows may see, unless a tree mask says otherwise
  int end[2];
  int first_row;   // of the item
  int full_begin;  // keys that all rows see
  int full_end;
  float key_scale;
  float v_unit;
  bool has_upper;   // rows 8 to 15
  bool by_element;  // scores are more than scaled products, or a tree hides keys

  struct RowPlace {
    int token;  // of the sequence
    int head;   // of the queries
  };
  QUIRE_DEVICE static RowPlace row_place(const AttendArgs& args, const Item& item, int row) {
    const int packed = item.first_row + row;
    const int token = packed / args.group;
    return {token, item.kv_head * args.group + (packed - token * args.group)};
  }
  QUIRE_DEVICE int row_of(int h) const { return first_row + lane() / 4 + 8 * h; }

  // Rows [first, first + 16) of the item, as far as it has them.
  QUIRE_DEVICE void start(const AttendArgs& args, const Item& item, int first) {
    first_row = first;
    has_upper = item.num_rows > first + 8;
    QUIRE_UNROLL
    for (auto& group : o) {
      QUIRE_UNROLL
      for (float& x : group) x = 0.0F;
    }
    const SequenceView sequence = item_sequence(args, item);
    int all_begin = item.key_begin;
    int all_end = item.key_end;
    QUIRE_UNROLL
    for (int h = 0; h < 2; ++h) {
      maximum[h] = negative_infinity();
      sum[h] = 0.0F;
      factor[h] = 1.0F;
      begin[h] = item.key_begin;
      end[h] = item.key_end;
      const int row = row_of(h);
      if (row >= item.num_rows) continue;
      if (args.alignment == Alignment::kAligned && sequence.tree_bits == nullptr) {
        const KeyRange seen = positions_seen(
            args.mask, query_position(sequence, row_place(args, item, row).token), item.kv_len);
        begin[h] = static_cast<int>(seen.begin);
        end[h] = static_cast<int>(seen.end);
      }
      if (begin[h] > all_begin) all_begin = begin[h];
      if (end[h] < all_end) all_end = end[h];
    }
    QUIRE_UNROLL
    for (int step = 4; step < kTeam; step *= 2) {
      const int other_begin = shuffle_xor(all_begin, step);
      const int other_end = shuffle_xor(all_end, step);
      all_begin = other_begin > all_begin ? other_begin : all_begin;
      all_end = other_end < all_end ? other_end : all_end;
    }
    by_element = args.params.softcap > 0.0F || args.params.alibi_slopes.size != 0 ||
                 args.params.bias.rank != 0 || sequence.tree_bits != nullptr;
    full_begin = by_element ? item.key_end : all_begin;
    full_end = all_end;
    load_scales(args, item);
  }

  // Loads the queries of the rows: store(step, fragment) for every kStride-th step from
  // `first_step`.
  template <int kStride, class Store>
  QUIRE_DEVICE void load_queries(const AttendArgs& args, const Item& item, int first_step,
                                 const Store& store) {
    std::int64_t bases[2];
    float inverse[2] = {1.0F, 1.0F};
    bool valid[2];
    QUIRE_UNROLL
    for (int h = 0; h < 2; ++h) {
      valid[h] = row_of(h) < item.num_rows;
      const RowPlace place = row_place(args, item, valid[h] ? row_of(h) : 0);
      bases[h] = (item.q_begin + static_cast<std::int64_t>(place.token)) * args.q.strides[0] +
                 place.head * args.q.strides[1];
      if constexpr (Tile::kScalesQueries) {
        factor[h] = query_factor(args, valid[h], bases[h]);
        inverse[h] = 1.0F / factor[h];
      }
    }
    QUIRE_NO_UNROLL
    for (int step = first_step; step < kSteps; step += kStride) {
      Fragment fragment;
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int h = i % 2;
        float x[2];
        QUIRE_UNROLL
        for (int c = 0; c < 2; ++c) {
          const int dim = Tile::query_dim(step, lane() % 4, i / 2, c);
          const bool is_dim = valid[h] && dim < args.cache.head_dim;
          x[c] =
              is_dim ? inverse[h] * load_query(args.q, bases[h] + dim * args.q.strides[2]) : 0.0F;
        }
        fragment.x[i] = pack(x[0], x[1], Compute{});
      }
      store(step, fragment);
    }
  }

  // Products to weights, and the running state to the new maximum. `tiles` are where the products
  // came from. Returns whether a row of this lane does not see a key that is there.
  QUIRE_DEVICE bool weigh(const AttendArgs& args, const Item& item, int first_key,
                          const unsigned char* tiles, float* scratch, Scores& s) {
    const bool hides = finish_scores(args, item, first_key, tiles, scratch, s);
    take_maximum(s);
    if (has_token_scales(args)) scale_weights(tiles, s);
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
    QUIRE_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) scratch[scratch_index(n, i)] = s[n][i];
    }
    sync_team();
  }

  // After the last keys: the lanes of a row agree on its sum.
  QUIRE_DEVICE void finish() {
    QUIRE_UNROLL
    for (int h = 0; h < 2; ++h) {
      sum[h] += shuffle_xor(sum[h], 1);
      sum[h] += shuffle_xor(sum[h], 2);
    }
  }

 private:
  // Scales that hold for all keys; those of tokens come with the tiles.
  QUIRE_DEVICE void load_scales(const AttendArgs& args, const Item& item) {
    const KvCacheView& cache = args.cache;
    key_scale = 1.0F;
    v_unit = 1.0F;
    if constexpr (Tile::kScalesQueries) {
      const ScaleGranularity scales = cache.format.scales;
      if (scales == ScaleGranularity::kPerTokenHead) {
        v_unit = 0x1p-126F;
      } else if (scales != ScaleGranularity::kNone) {
        const KvScales& of_values = cache.format.v_in_k ? cache.k_scales : cache.v_scales;
        key_scale = cache.k_scales.data[scale_offset(cache.k_scales, 0, item.kv_head, 0)];
        v_unit = of_values.data[scale_offset(of_values, 0, item.kv_head, 0)];
      }
    }
  }

  // The power of two that brings the largest number of a query to at most 32768.
  QUIRE_DEVICE static float query_factor(const AttendArgs& args, bool valid, std::int64_t base) {
    float largest = 0.0F;
    QUIRE_NO_UNROLL
    for (int dim = lane() % 4; valid && dim < args.cache.head_dim; dim += 4) {
      largest =
          max_of(largest, finite_magnitude(load_query(args.q, base + dim * args.q.strides[2])));
    }
    largest = max_of(largest, shuffle_xor(largest, 1));
    largest = max_of(largest, shuffle_xor(largest, 2));
    const std::int32_t exponent = (__builtin_bit_cast(std::int32_t, largest) >> 23) - 14;
    return largest > 0.0F ? __builtin_bit_cast(float, (exponent < 1 ? 1 : exponent) << 23) : 1.0F;
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
                                  const unsigned char* tiles, float* scratch, Scores& s) {
    const bool per_token = has_token_scales(args);
    const float scale = key_scale * (by_element ? 1.0F : args.params.scale * kLog2E);
    QUIRE_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      QUIRE_UNROLL
      for (int c = 0; c < 2; ++c) {
        const int offset = 8 * n + 2 * (lane() % 4) + c;
        const float of_key = per_token ? scale * key_scale_at(tiles, offset) : scale;
        QUIRE_UNROLL
        for (int h = 0; h < 2; ++h) {
          s[n][2 * h + c] *= Tile::kScalesQueries ? of_key * factor[h] : of_key;
        }
      }
    }
    if (first_key >= full_begin && first_key + kKeys <= full_end) return false;
    if (by_element) finish_by_element(args, item, first_key, scratch, s);
    const auto first_there = static_cast<unsigned>(item.key_begin);
    const auto num_there = static_cast<unsigned>(item.key_end - item.key_begin);
    const bool is_row[2] = {row_of(0) < item.num_rows, row_of(1) < item.num_rows};
    bool hides = false;
    QUIRE_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      QUIRE_UNROLL
      for (int c = 0; c < 2; ++c) {
        const int key = first_key + 8 * n + 2 * (lane() % 4) + c;
        const bool is_there = static_cast<unsigned>(key) - first_there < num_there;
        QUIRE_UNROLL
        for (int h = 0; h < 2; ++h) {
          float& x = s[n][2 * h + c];
          const bool sees = is_there & (key >= begin[h]) & (key < end[h]);
          x = sees ? x : negative_infinity();
          hides = hides | (is_there & is_row[h] & (x == negative_infinity()));
        }
      }
    }
    return hides;
  }

  // Softcap, ALiBi, bias and tree mask, through shared memory so that there is one copy of them.
  QUIRE_DEVICE void finish_by_element(const AttendArgs& args, const Item& item, int first_key,
                                      float* scratch, Scores& s) {
    to_scratch(s, scratch);
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
    sync_team();
    QUIRE_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) s[n][i] = scratch[scratch_index(n, i)];
    }
  }

  // Where element i of group n of this lane lies in the scratch.
  QUIRE_DEVICE static int scratch_index(int n, int i) {
    return (lane() / 4 + 8 * (i / 2)) * kKeys + 8 * n + 2 * (lane() % 4) + i % 2;
  }

  // Scores to weights, and the running maximum, sum and values to the new maximum.
  QUIRE_DEVICE void take_maximum(Scores& s) {
    float shrink[2] = {1.0F, 1.0F};
    QUIRE_UNROLL
    for (int h = 0; h < 2; ++h) {
      if (h == 1 && !has_upper) {  // none of the upper rows is one
        QUIRE_UNROLL
        for (auto& x : s) x[2] = x[3] = 0.0F;
        continue;
      }
      float largest = max_of(s[0][2 * h], s[0][2 * h + 1]);
      QUIRE_UNROLL
      for (int n = 1; n < kGroups; ++n) {
        largest = max_of(largest, max_of(s[n][2 * h], s[n][2 * h + 1]));
      }
      largest = max_of(largest, shuffle_xor(largest, 1));
      largest = max_of(largest, shuffle_xor(largest, 2));
      const float larger = max_of(maximum[h], largest);
      const float base = larger == negative_infinity() ? 0.0F : larger;
      shrink[h] = exp2_fast(maximum[h] - base);
      maximum[h] = larger;
      float added = 0.0F;
      QUIRE_UNROLL
      for (int n = 0; n < kGroups; ++n) {
        QUIRE_UNROLL
        for (int c = 0; c < 2; ++c) {
          float& x = s[n][2 * h + c];
          x = exp2_fast(x - base);
          added += x;
        }
      }
      sum[h] = sum[h] * shrink[h] + added;
    }
    if (!any((shrink[0] != 1.0F) | (shrink[1] != 1.0F))) return;
    QUIRE_UNROLL
    for (auto& x : o) {
      x[0] *= shrink[0];
      x[1] *= shrink[0];
      x[2] *= shrink[1];
      x[3] *= shrink[1];
    }
  }

  // Weights times the scales of their values, in units of a power of two that no scale exceeds. The
  // scale of a key that no row sees may be anything.
  QUIRE_DEVICE void scale_weights(const unsigned char* tiles, Scores& s) {
    float largest = 0.0F;
    QUIRE_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      QUIRE_UNROLL
      for (int c = 0; c < 2; ++c) {
        const bool counts = (s[n][c] != 0.0F) | (s[n][2 + c] != 0.0F);
        const float scale = value_scale_at(tiles, 8 * n + 2 * (lane() % 4) + c);
        largest = max_of(largest, counts ? scale : 0.0F);
      }
    }
    largest = team_max(largest);
    if (largest > v_unit) {
      const std::int32_t exponent = (__builtin_bit_cast(std::int32_t, largest) >> 23) + 1;
      const float unit = __builtin_bit_cast(float, (exponent > 254 ? 254 : exponent) << 23);
      const float change = v_unit / unit;
      v_unit = unit;
      QUIRE_UNROLL
      for (auto& group : o) {
        QUIRE_UNROLL
        for (float& x : group) x *= change;
      }
    }
    const float inverse = 1.0F / v_unit;
    QUIRE_UNROLL
    for (int n = 0; n < kGroups; ++n) {
      QUIRE_UNROLL
      for (int c = 0; c < 2; ++c) {
        const float scale = value_scale_at(tiles, 8 * n + 2 * (lane() % 4) + c) * inverse;
        s[n][c] = s[n][c] != 0.0F ? s[n][c] * scale : 0.0F;
        s[n][2 + c] = s[n][2 + c] != 0.0F ? s[n][2 + c] * scale : 0.0F;
      }
    }
  }
};

}  // namespace quire::gpu
