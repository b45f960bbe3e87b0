// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over many keys: decode and verification. At most 8 * kGroups packed rows
// are the columns of the matrix products, so K and V are read once for all of them. The teams of a
// thread block share the keys of an item: each streams its own tiles of keys through its own ring
// in shared memory and needs no barrier of the block until its keys are done; then the teams'
// states are merged in their order.
//
// 16-bit K and V are multiplied as they are. 8-bit ones are widened to f16 in registers, which is
// exact; the queries are then f16 too, scaled by a power of two so that none overflows.
//
// A row has the same bits for either kGroups.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/attend_rows.h"
#include "gpu/kernels/key_tiles.h"
#include "gpu/kernels/row_block.h"
#include "gpu/kernels/row_states.h"
#include "gpu/kernels/tile_products.h"

namespace quire::gpu {

// What the block shares besides the teams' memory.
struct StreamShared {
  Item items[3];               // the last one, the current one and the next
  float factors[kStreamRows];  // 8-bit: powers of two that the queries were divided by
  int slot;
  int flag;
};

template <class Stored, int kDims, int kGroups>
struct StreamShape {
  using Tile = KeyTile<Stored, kDims>;
  using Rows = RowBlock<Stored, kDims, 1, RowsAcross<kGroups>>;
  static constexpr int kRows = Rows::kRows;
  // For rows of 256 dims one block fills a processor's shared memory; six teams in it were slower.
  static constexpr int kTeams = 4;
  static constexpr int kThreads = kTeams * kTeam;
  static constexpr int kMinBlocks = kDims == 256 ? 1 : 2;
  static constexpr int kStages = kDims == 256 ? 2 : kDims == 128 ? 3 : 4;
  static constexpr int kRingBytes = kStages * Tile::kBytes;
  // When a team's keys are done, its state lies in the last stage: the first loads of the next item
  // go to the others.
  static constexpr int kStateBegin = (kStages - 1) * Tile::kBytes;
  static_assert(kRows * kDims * 4 <= Tile::kBytes);
  static constexpr int kScratchBytes = Rows::kScratchBytes;
  static constexpr int kTeamBytes = kRingBytes + kScratchBytes;
  // The block loads the queries, rows of raw numbers with a gap that keeps lanes apart; where their
  // fragments do not fit the registers beside the values, these stay in shared memory.
  static constexpr int kQueryStride = 2 * kDims + 16;
  static constexpr int kRawBytes = kRows * kQueryStride;
  static constexpr int kRawPieces = (kRows * kDims / 8 + kThreads - 1) / kThreads;
  static constexpr bool kQueriesStay = kDims * kGroups > 256;
  // Those of the next item are fetched while the current one is computed, if they are few.
  static constexpr bool kFetchesEarly = kRawPieces == 1;
  static constexpr int kQueryBytes =
      kRawBytes +
      (kQueriesStay ? kDims / 16 * kTeam * static_cast<int>(sizeof(typename Rows::Fragment)) : 0);
  // [teams][ring, scratch], [queries], then the block's sums, weights and flags.
  static constexpr int kSharedBytes = kTeams * kTeamBytes + kQueryBytes +
                                      kRows * (3 * kTeams + 1) * 4 +
                                      static_cast<int>(sizeof(StreamShared));
};

// One team's part of an item: every kTeams-th tile of its keys.
template <class Stored, int kDims, int kGroups>
class StreamTeam {
 public:
  using Shape = StreamShape<Stored, kDims, kGroups>;
  using Tile = typename Shape::Tile;
  using Rows = typename Shape::Rows;
  using Fragment = typename Rows::Fragment;
  using Products = typename Rows::Products;
  using Map = RowsAcross<kGroups>;
  static constexpr int kKeys = Tile::kKeys;
  static constexpr int kSteps = kDims / 16;

  // ring [kRingBytes] and scratch [kScratchBytes] are the team's own, in shared memory;
  // queries [kQueryBytes] and factors [kRows] are the block's.
  QUIRE_DEVICE StreamTeam(const AttendArgs& args, unsigned char* ring, float* scratch,
                          unsigned char* queries, float* factors)
      : args_(args), ring_(ring), scratch_(scratch), raw_(queries), factors_(factors) {}

  // Starts the loads of the first tiles. The ring is free.
  QUIRE_DEVICE void begin(const Item* item) {
    item_ = item;
    loader_.begin(args_, *item_);
    const int first = first_tile();
    loader_.look_up(args_, *item_, first);
    QUIRE_NO_UNROLL
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) {
      loader_.load(args_, *item_, first + stage * Shape::kTeams, ring_ + stage * Tile::kBytes,
                   first + (stage + 1) * Shape::kTeams);
    }
  }

  // The block's queries in three steps: from global memory to registers, where they may be on their
  // way for long; to shared memory; and behind a barrier, from there to fragments.
  QUIRE_DEVICE void fetch_queries(const Item& item) {
    QUIRE_UNROLL
    for (int i = 0; i < Shape::kRawPieces; ++i) {
      const QueryPiece piece = query_piece(i);
      pieces_[i] = Sixteen{};
      if (piece.row < item.num_rows && piece.dim < args_.cache.head_dim) {
        const auto place = Rows::row_place(args_, item, piece.row);
        const std::int64_t at =
            (item.q_begin + static_cast<std::int64_t>(place.token)) * args_.q.strides[0] +
            place.head * args_.q.strides[1] + piece.dim * args_.q.strides[2];
        const auto* q = static_cast<const std::uint16_t*>(args_.q.data) + at;
        pieces_[i] = args_.q_in_sixteens ? *reinterpret_cast<const Sixteen*>(q)
                                         : gather_query(q, args_.q.strides[2]);
      }
    }
  }
  QUIRE_DEVICE void stage_queries() {
    QUIRE_UNROLL
    for (int i = 0; i < Shape::kRawPieces; ++i) {
      const QueryPiece piece = query_piece(i);
      if constexpr (Tile::kScalesQueries) {
        float largest = 0.0F;
        QUIRE_UNROLL
        for (int c = 0; c < 8; ++c) {
          largest = max_of(largest, finite_magnitude(query_at(pieces_[i].x[c / 2], c % 2)));
        }
        QUIRE_UNROLL
        for (int other = 1; other < kDims / 8; other *= 2) {
          largest = max_of(largest, shuffle_xor(largest, other));
        }
        if (piece.dim == 0 && piece.row < Shape::kRows) {
          factors_[piece.row] = Rows::factor_of_largest(largest);
        }
      }
      if (piece.row < Shape::kRows) {
        *reinterpret_cast<Sixteen*>(raw_ + piece.row * Shape::kQueryStride + 2 * piece.dim) =
            pieces_[i];
      }
    }
  }

  QUIRE_DEVICE void start() {
    rows_.start(args_, *item_, 0, scratch_);
    rows_.clear_state();
    if constexpr (Tile::kScalesQueries) {
      QUIRE_UNROLL
      for (int slot = 0; slot < Map::kSlots; ++slot) {
        rows_.row_scale[slot] *= factors_[Map::row(slot)];
      }
    }
    if constexpr (Shape::kQueriesStay) {
      QUIRE_NO_UNROLL
      for (int step = team(); step < kSteps; step += Shape::kTeams) {
        fragments()[step * kTeam + lane()] = query_fragment(step);
      }
      sync_block();
    } else {
      QUIRE_UNROLL
      for (int step = 0; step < kSteps; ++step) q_[step] = query_fragment(step);
    }
  }

  QUIRE_DEVICE void run() {
    const int num_tiles = (item_->key_end + kKeys - 1) / kKeys;
    int stage = 0;
    QUIRE_NO_UNROLL
    for (int tile = first_tile(); tile < num_tiles; tile += Shape::kTeams) {
      const int ahead = stage == 0 ? Shape::kStages - 1 : stage - 1;
      const int next = tile + (Shape::kStages - 1) * Shape::kTeams;
      loader_.load(args_, *item_, next, ring_ + ahead * Tile::kBytes, next + Shape::kTeams);
      async_wait<Shape::kStages - 1>();
      sync_team();
      attend_tile(tile * kKeys, ring_ + stage * Tile::kBytes);
      sync_team();  // the next load overwrites this stage
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
    async_wait<0>();
    rows_.finish();
    sync_team();  // all lanes are done with the ring
  }

  // Values [row, kDims] to the last stage, maximum and sum to `sums` [row, 2].
  QUIRE_DEVICE void store(float* sums) const {
    auto* values = reinterpret_cast<float*>(ring_ + Shape::kStateBegin);
    QUIRE_UNROLL
    for (int n = 0; n < Map::num_values(kDims); ++n) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = Map::row(Map::slot(n, i));
        if (row >= item_->num_rows) continue;
        values[row * kDims + Products::value_dim(n, i)] = rows_.o[n][i] * rows_.v_unit;
      }
    }
    QUIRE_UNROLL
    for (int slot = 0; slot < Map::kSlots; ++slot) {
      const int row = Map::row(slot);
      if (lane() >= Map::kFirstOther || row >= item_->num_rows) continue;
      sums[2 * row] = rows_.maximum(slot);
      sums[2 * row + 1] = rows_.sum[slot];
    }
  }

 private:
  // Eight numbers of a query, of which thread and i say which.
  struct QueryPiece {
    int row;
    int dim;
  };
  QUIRE_DEVICE static QueryPiece query_piece(int i) {
    const int index = i * Shape::kThreads + thread_index();
    return {index / (kDims / 8), index % (kDims / 8) * 8};
  }
  // 8-bit keys: queries of either 16-bit format, of which the lower or the upper in a word.
  QUIRE_DEVICE float query_at(std::uint32_t two, int which) const {
    const auto bits = static_cast<std::uint16_t>(two >> (16 * which));
    return args_.q.dtype == DType::kBF16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
  }
  QUIRE_DEVICE Fragment query_fragment(int step) const {
    Fragment fragment;
    QUIRE_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) {
      const int row = 8 * (i % kGroups) + lane() / 4;
      const int dim = Products::query_dim(step, i / kGroups, 0);
      std::uint32_t two =
          *reinterpret_cast<const std::uint32_t*>(raw_ + row * Shape::kQueryStride + 2 * dim);
      if constexpr (Tile::kScalesQueries) {
        const float inverse = 1.0F / factors_[row];
        two = pack(inverse * query_at(two, 0), inverse * query_at(two, 1), Float16{});
      }
      fragment.x[i] = two;
    }
    return fragment;
  }
  QUIRE_DEVICE Fragment* fragments() const {
    return reinterpret_cast<Fragment*>(raw_ + Shape::kRawBytes);
  }

  QUIRE_DEVICE int first_tile() const { return item_->key_begin / kKeys + team(); }

  QUIRE_DEVICE void attend_tile(int first_key, unsigned char* tile) {
    typename Rows::Scores s;
    Rows::clear(s);
    Products::template multiply_keys<1>(
        tile,
        [this](int, int step) {
          if constexpr (Shape::kQueriesStay) {
            return fragments()[step * kTeam + lane()];
          } else {
            return q_[step];
          }
        },
        s);
    const bool hides = rows_.weigh(args_, *item_, first_key, tile, scratch_, s);
    if (any(hides) && Tile::has_non_finite_values(tile)) {
      Rows::to_scratch(s, 0, 0, scratch_);
      rows_.add_non_finite_values(tile, scratch_, 0);
      Tile::clear_non_finite(tile);
    }
    const bool twice = Rows::needs_rest_of_weights(args_);
    QUIRE_NO_UNROLL
    for (int pass = 0; pass < (twice ? 2 : 1); ++pass) {
      if (pass == 1) Rows::keep_rest(s);
      Products::multiply_values(tile, s, rows_.o);
    }
  }

  const AttendArgs& args_;
  unsigned char* ring_;
  float* scratch_;
  unsigned char* raw_;
  float* factors_;
  const Item* item_ = nullptr;  // in shared memory
  TileLoader<Stored, kDims> loader_;
  Rows rows_;
  Fragment q_[Shape::kQueriesStay ? 1 : kSteps];
  Sixteen pieces_[Shape::kRawPieces];  // of the next item's queries
};

// Merges the teams' states of an item, in their order, and writes its rows. The values of the first
// team are at `states`, those of the next team_bytes on.
template <int kDims, int kRows, int kTeams>
QUIRE_DEVICE void finish_stream_item(const AttendArgs& args, const Item& item,
                                     const unsigned char* states, int team_bytes, float* sums,
                                     float* weights) {
  // sums [teams, rows, 2]; weights [rows, teams + 1]: of each team, then the factor of the row.
  const int thread = thread_index();
  const bool is_split = item.num_splits > 1;
  if (thread < item.num_rows) {
    const int row = thread;
    float maximum = negative_infinity();
    for (int t = 0; t < kTeams; ++t) {
      maximum = max_of(maximum, sums[2 * (t * kRows + row)]);
    }
    const float base = maximum == negative_infinity() ? 0.0F : maximum;
    float sum = 0.0F;
    for (int t = 0; t < kTeams; ++t) {
      const float weight = exp2_fast(sums[2 * (t * kRows + row)] - base);
      weights[row * (kTeams + 1) + t] = weight;
      sum += weight * sums[2 * (t * kRows + row) + 1];
    }
    float factor = 1.0F;
    if (is_split) {
      args.partial_sums[2 * (item.partial_row + row)] = maximum;
      args.partial_sums[2 * (item.partial_row + row) + 1] = sum;
    } else {
      factor = finish_row(args, output_row(args, item, row), maximum, sum, true);
    }
    weights[row * (kTeams + 1) + kTeams] = factor;
  }
  sync_block();
  const int value_dim = args.cache.value_dim;
  for (int i = 4 * thread; i < item.num_rows * kDims; i += 4 * kTeams * kTeam) {
    const int row = i / kDims;
    const int dim = i % kDims;
    if (dim >= value_dim) continue;
    const float* row_weights = weights + row * (kTeams + 1);
    float total[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    QUIRE_UNROLL
    for (int t = 0; t < kTeams; ++t) {
      const float weight = row_weights[t];
      if (weight == 0.0F) continue;  // saw nothing
      const Float4 values =
          *reinterpret_cast<const Float4*>(states + t * team_bytes + 4 * (row * kDims + dim));
      total[0] += weight * values.x;
      total[1] += weight * values.y;
      total[2] += weight * values.z;
      total[3] += weight * values.w;
    }
    if (is_split) {
      *reinterpret_cast<Float4*>(args.partial_values +
                                 (item.partial_row + row) * args.value_stride +
                                 dim) = {total[0], total[1], total[2], total[3]};
      continue;
    }
    const float factor = row_weights[kTeams];
    const OutputRow to = output_row(args, item, row);
    for (int c = 0; c < 4 && dim + c < value_dim; ++c) {
      store_value(args.output.out, to, dim + c, total[c] * factor);
    }
  }
}

// Items one after another: the first two by the block's index, the others by a counter. What can be
// known of the next one is fetched while the current one is computed, and its first tiles are on
// their way while the current one is merged.
template <class Stored, int kDims, int kGroups>
QUIRE_DEVICE void attend_stream(const AttendArgs& args) {
  using Shape = StreamShape<Stored, kDims, kGroups>;
  constexpr int kRows = Shape::kRows;
  constexpr int kTeams = Shape::kTeams;
  unsigned char* memory = shared_memory();
  unsigned char* queries = memory + kTeams * Shape::kTeamBytes;
  auto* sums = reinterpret_cast<float*>(queries + Shape::kQueryBytes);
  float* weights = sums + 2 * kTeams * kRows;
  auto& shared = *reinterpret_cast<StreamShared*>(weights + kRows * (kTeams + 1));
  unsigned char* ring = memory + team() * Shape::kTeamBytes;
  StreamTeam<Stored, kDims, kGroups> state(
      args, ring, reinterpret_cast<float*>(ring + Shape::kRingBytes), queries, shared.factors);
  int index = block_index();
  store_item_piece(&shared.items[0], load_item_piece(args, index));
  const int num_items = *args.fault == kNoFault ? *args.num_items : 0;
  sync_block();
  if (index < num_items) {
    if constexpr (Shape::kFetchesEarly) state.fetch_queries(shared.items[0]);
    state.begin(&shared.items[0]);
  }
  int next = index + num_blocks();
  int current = 0;
  int splits_before = 0;  // thread 0: of the last item's unit, when it was counted
  bool has_last = false;
  QUIRE_NO_UNROLL
  while (index < num_items) {
    const bool has_next = next < num_items;
    int taken = num_items;
    if (has_next && thread_index() == 0) {
      taken = 2 * num_blocks() + atomic_add(args.next_item, 1);
    }
    const Sixteen piece = has_next ? load_item_piece(args, next) : Sixteen{};
    if constexpr (!Shape::kFetchesEarly) state.fetch_queries(shared.items[current]);
    state.stage_queries();
    const int following = current == 2 ? 0 : current + 1;
    store_item_piece(&shared.items[following], piece);
    const Item& last_item = shared.items[current == 0 ? 2 : current - 1];
    if (thread_index() == 0) {
      shared.flag = has_last && is_last_split(args, last_item, splits_before) ? 1 : 0;
    }
    sync_block();
    if (shared.flag != 0) merge_rows(args, last_item);
    has_last = true;
    state.start();
    if constexpr (Shape::kFetchesEarly) {
      if (has_next) state.fetch_queries(shared.items[following]);
    }
    state.run();
    state.store(sums + 2 * team() * kRows);
    if (has_next) state.begin(&shared.items[following]);
    if (thread_index() == 0) shared.slot = taken;
    sync_block();
    const Item& item = shared.items[current];
    finish_stream_item<kDims, kRows, kTeams>(args, item, memory + Shape::kStateBegin,
                                             Shape::kTeamBytes, sums, weights);
    index = next;
    next = shared.slot;
    sync_block();
    // Whether all splits are there is known when the next item has begun.
    splits_before = count_split(args, item);
    current = current == 2 ? 0 : current + 1;
    if (index < num_items) continue;
    if (thread_index() == 0) shared.flag = is_last_split(args, item, splits_before) ? 1 : 0;
    sync_block();
    if (shared.flag != 0) merge_rows(args, item);
  }
  finish_items(args);
}

}  // namespace quire::gpu
