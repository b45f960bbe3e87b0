// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over many keys: decode and verification. At most 16 packed rows are one
// side of the matrix products, so K and V are read once for all of them. The teams of a thread
// block share the keys of an item: each streams its own tiles of keys through its own ring in
// shared memory and needs no barrier of the block until its keys are done; then the teams' states
// are merged in their order.
//
// 16-bit K and V are multiplied as they are. 8-bit ones are widened to f16 in registers, which is
// exact; the queries are then f16 too, scaled by a power of two so that none overflows.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/attend_rows.h"
#include "gpu/kernels/key_tiles.h"
#include "gpu/kernels/row_block.h"
#include "gpu/kernels/row_states.h"

namespace quire::gpu {

inline constexpr int kStreamTeams = 4;
inline constexpr int kStreamThreads = kStreamTeams * kTeam;

// What the block shares besides the teams' memory.
struct StreamShared {
  Item items[2];  // the current one, and the next
  int slot;
  int flag;
};

template <class Stored, int kDims>
struct StreamShape {
  using Tile = KeyTile<Stored, kDims>;
  using Rows = RowBlock<Stored, kDims, 1>;
  static constexpr int kStages = kDims == 256 ? 2 : kDims == 128 ? 3 : 4;
  static constexpr int kRingBytes = kStages * Tile::kBytes;
  static constexpr int kStateFloats = kStreamRows * kDims;  // of one team, when its keys are done
  static constexpr int kScratchBytes = Rows::kScratchFloats * 4;
  static constexpr int kTeamBytes =
      (kRingBytes > kStateFloats * 4 ? kRingBytes : kStateFloats * 4) + kScratchBytes;
  // The teams load the queries together; those of long rows stay in shared memory, for they do not
  // fit the registers beside the values.
  static constexpr bool kQueriesStay = kDims > 128;
  static constexpr int kQueryBytes = kDims / 16 * kTeam * 16;
  // [teams][ring, scratch], [queries], then the block's sums, weights and flags.
  static constexpr int kSharedBytes = kStreamTeams * kTeamBytes + kQueryBytes +
                                      kStreamRows * (3 * kStreamTeams + 1) * 4 +
                                      static_cast<int>(sizeof(StreamShared));
};

// One team's part of an item: every kStreamTeams-th tile of its keys.
template <class Stored, int kDims>
class StreamTeam {
 public:
  using Shape = StreamShape<Stored, kDims>;
  using Tile = typename Shape::Tile;
  using Rows = typename Shape::Rows;
  static constexpr int kKeys = Tile::kKeys;
  static constexpr int kSteps = kDims / 16;

  // ring [kRingBytes] and scratch [kScratchBytes] are the team's own, in shared memory;
  // queries [kQueryBytes] are the block's.
  QUIRE_DEVICE StreamTeam(const AttendArgs& args, unsigned char* ring, float* scratch,
                          unsigned char* queries)
      : args_(args),
        ring_(ring),
        scratch_(scratch),
        queries_(reinterpret_cast<Fragment*>(queries)) {}

  // Starts the loads of the first tiles. The ring is free.
  QUIRE_DEVICE void begin(const Item* item) {
    item_ = item;
    loader_.begin(args_, *item_);
    const int first = first_tile();
    loader_.look_up(args_, *item_, first);
    QUIRE_NO_UNROLL
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) {
      loader_.load(args_, *item_, first + stage * kStreamTeams, ring_ + stage * Tile::kBytes,
                   first + (stage + 1) * kStreamTeams);
    }
  }

  QUIRE_DEVICE void run() {
    rows_.start(args_, *item_, 0);
    rows_.template load_queries<kStreamTeams>(
        args_, *item_, team(),
        [this](int step, const Fragment& fragment) { queries_[step * kTeam + lane()] = fragment; });
    sync_block();
    if constexpr (!Shape::kQueriesStay) {
      QUIRE_UNROLL
      for (int step = 0; step < kSteps; ++step) q_[step] = queries_[step * kTeam + lane()];
    }
    const int num_tiles = (item_->key_end + kKeys - 1) / kKeys;
    int stage = 0;
    QUIRE_NO_UNROLL
    for (int tile = first_tile(); tile < num_tiles; tile += kStreamTeams) {
      const int ahead = stage == 0 ? Shape::kStages - 1 : stage - 1;
      const int next = tile + (Shape::kStages - 1) * kStreamTeams;
      loader_.load(args_, *item_, next, ring_ + ahead * Tile::kBytes, next + kStreamTeams);
      async_wait<Shape::kStages - 1>();
      sync_team();
      attend_tile(tile * kKeys, ring_ + stage * Tile::kBytes);
      sync_team();  // the next load overwrites this stage
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
    async_wait<0>();
    rows_.finish();
  }

  // Values [row, kDims] to `values`, maximum and sum to `sums` [row, 2].
  QUIRE_DEVICE void store(float* values, float* sums) const {
    QUIRE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int row = rows_.row_of(h);
      if (row >= item_->num_rows) continue;
      QUIRE_UNROLL
      for (int n = 0; n < kDims / 8; ++n) {
        QUIRE_UNROLL
        for (int c = 0; c < 2; ++c) {
          values[row * kDims + Tile::value_dim(n, 2 * (lane() % 4) + c)] =
              rows_.o[n][2 * h + c] * rows_.v_unit;
        }
      }
      if (lane() % 4 == 0) {
        sums[2 * row] = rows_.maximum[h];
        sums[2 * row + 1] = rows_.sum[h];
      }
    }
  }

 private:
  QUIRE_DEVICE int first_tile() const { return item_->key_begin / kKeys + team(); }

  QUIRE_DEVICE void attend_tile(int first_key, unsigned char* tile) {
    typename Rows::Scores s;
    Rows::clear(s);
    const auto scores = [&s](int, int n) -> float(&)[4] { return s[n]; };
    const auto values = [this](int, int n) -> float(&)[4] { return rows_.o[n]; };
    Tile::template multiply_keys<1>(
        tile,
        [this](int, int step) {
          if constexpr (Shape::kQueriesStay) {
            return queries_[step * kTeam + lane()];
          } else {
            return q_[step];
          }
        },
        scores);
    const bool hides = rows_.weigh(args_, *item_, first_key, tile, scratch_, s);
    if (any(hides) && Tile::has_non_finite_values(tile)) {
      Rows::to_scratch(s, scratch_);
      Tile::add_non_finite(tile, scratch_, kKeys, rows_.o);
      Tile::clear_non_finite(tile);
    }
    Tile::template multiply_values<1>(tile, scores, values);
    if (Rows::needs_rest_of_weights(args_)) {
      Rows::keep_rest(s);
      Tile::template multiply_values<1>(tile, scores, values);
    }
  }

  const AttendArgs& args_;
  unsigned char* ring_;
  float* scratch_;
  Fragment* queries_;
  const Item* item_ = nullptr;  // in shared memory
  TileLoader<Stored, kDims> loader_;
  Rows rows_;
  Fragment q_[Shape::kQueriesStay ? 1 : kSteps];
};

// Merges the teams' states of an item, in their order, and writes its rows.
template <int kDims>
QUIRE_DEVICE void finish_stream_item(const AttendArgs& args, const Item& item,
                                     const unsigned char* shared, int team_bytes, float* sums,
                                     float* weights) {
  // sums [teams, rows, 2]; weights [rows, teams + 1]: of each team, then the factor of the row.
  const int thread = thread_index();
  const bool is_split = item.num_splits > 1;
  if (thread < item.num_rows) {
    const int row = thread;
    float maximum = negative_infinity();
    for (int t = 0; t < kStreamTeams; ++t) {
      maximum = max_of(maximum, sums[2 * (t * kStreamRows + row)]);
    }
    const float base = maximum == negative_infinity() ? 0.0F : maximum;
    float sum = 0.0F;
    for (int t = 0; t < kStreamTeams; ++t) {
      const float weight = exp2_fast(sums[2 * (t * kStreamRows + row)] - base);
      weights[row * (kStreamTeams + 1) + t] = weight;
      sum += weight * sums[2 * (t * kStreamRows + row) + 1];
    }
    float factor = 1.0F;
    if (is_split) {
      args.partial_sums[2 * (item.partial_row + row)] = maximum;
      args.partial_sums[2 * (item.partial_row + row) + 1] = sum;
    } else {
      factor = finish_row(args, output_row(args, item, row), maximum, sum, true);
    }
    weights[row * (kStreamTeams + 1) + kStreamTeams] = factor;
  }
  sync_block();
  const int value_dim = args.cache.value_dim;
  for (int i = 4 * thread; i < item.num_rows * kDims; i += 4 * kStreamThreads) {
    const int row = i / kDims;
    const int dim = i % kDims;
    if (dim >= value_dim) continue;
    const float* row_weights = weights + row * (kStreamTeams + 1);
    float total[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    QUIRE_UNROLL
    for (int t = 0; t < kStreamTeams; ++t) {
      const float weight = row_weights[t];
      if (weight == 0.0F) continue;  // saw nothing
      const Float4 values =
          *reinterpret_cast<const Float4*>(shared + t * team_bytes + 4 * (row * kDims + dim));
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
    const float factor = row_weights[kStreamTeams];
    const OutputRow to = output_row(args, item, row);
    for (int c = 0; c < 4 && dim + c < value_dim; ++c) {
      store_value(args.output.out, to, dim + c, total[c] * factor);
    }
  }
}

// Items one after another. The first is given by the block's index, the others by a counter; what
// can be known of the next one is fetched while the current one is computed, and its first tiles
// are on their way while the current one is merged.
template <class Stored, int kDims>
QUIRE_DEVICE void attend_stream(const AttendArgs& args) {
  using Shape = StreamShape<Stored, kDims>;
  unsigned char* memory = shared_memory();
  unsigned char* queries = memory + kStreamTeams * Shape::kTeamBytes;
  auto* sums = reinterpret_cast<float*>(queries + Shape::kQueryBytes);
  float* weights = sums + 2 * kStreamTeams * kStreamRows;
  auto& shared = *reinterpret_cast<StreamShared*>(weights + kStreamRows * (kStreamTeams + 1));
  unsigned char* ring = memory + team() * Shape::kTeamBytes;
  StreamTeam<Stored, kDims> state(
      args, ring, reinterpret_cast<float*>(ring + Shape::kTeamBytes - Shape::kScratchBytes),
      queries);
  const int num_items = *args.fault == kNoFault ? *args.num_items : 0;
  int index = block_index();
  fetch_item(args, index, &shared.items[0]);
  sync_block();
  if (index < num_items) state.begin(&shared.items[0]);
  int current = 0;
  QUIRE_NO_UNROLL
  while (index < num_items) {
    int taken = 0;
    if (thread_index() == 0) taken = num_blocks() + atomic_add(args.next_item, 1);
    state.run();
    sync_team();  // all lanes are done with the ring
    state.store(reinterpret_cast<float*>(ring), sums + 2 * team() * kStreamRows);
    if (thread_index() == 0) shared.slot = taken;
    sync_block();
    const Item& item = shared.items[current];
    index = shared.slot;
    if (index < num_items) fetch_item(args, index, &shared.items[1 - current]);
    finish_stream_item<kDims>(args, item, memory, Shape::kTeamBytes, sums, weights);
    const bool is_split = item.num_splits > 1;
    if (is_split) fence();
    sync_block();
    if (is_split) count_split(args, item, &shared.flag);
    if (index < num_items) state.begin(&shared.items[1 - current]);
    if (is_split) {
      sync_block();
      if (shared.flag != 0) merge_rows(args, item);
    }
    current = 1 - current;
  }
  finish_items(args);
}

}  // namespace quire::gpu
