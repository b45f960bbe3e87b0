// SPDX-License-Identifier: Apache-2.0
// Attention of many rows: prefill and chunks. Each team holds some blocks of 16 packed rows in
// registers and all teams read the same keys: a stage of shared memory holds one key tile for each
// team to load, and while one stage is computed the next is on its way.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/key_tiles.h"
#include "gpu/kernels/row_block.h"
#include "gpu/kernels/row_states.h"

namespace quire::gpu {

struct TileShared {
  Item item;
  int slot;
  int flag;
};

template <class Stored, int kDims>
struct TileShape {
  using Tile = KeyTile<Stored, kDims>;
  static constexpr int kTeams = tile_rows(kDims) / RowsDown::kRows;
  static constexpr int kThreads = kTeams * kTeam;
  static constexpr int kBlocks = 1;                // of rows in a team
  static constexpr int kTiles = 64 / Tile::kKeys;  // that are attended to at a time
  static constexpr int kStageBytes = kTeams * Tile::kBytes;
  static constexpr int kStages = 2;
  using Rows = RowBlock<Stored, kDims, kTiles, RowsDown>;
  static constexpr int kSteps = kDims / 16;
  static constexpr int kQueryBytes = kTeams * kBlocks * kSteps * kTeam * 16;
  static constexpr int kScratchBytes = Rows::kScratchFloats * 4;  // of a team
  static constexpr int kSharedBytes = kStages * kStageBytes + kQueryBytes + kTeams * kScratchBytes +
                                      static_cast<int>(sizeof(TileShared));
};

template <class Stored, int kDims>
class TileTeam {
 public:
  using Shape = TileShape<Stored, kDims>;
  using Tile = typename Shape::Tile;
  using Rows = typename Shape::Rows;
  using Fragment = typename Rows::Fragment;
  using Products = typename Rows::Products;
  static constexpr int kBlocks = Shape::kBlocks;
  static constexpr int kTeams = Shape::kTeams;

  QUIRE_DEVICE TileTeam(const AttendArgs& args, const Item& item, unsigned char* memory)
      : args_(args), item_(item), stages_(memory) {
    unsigned char* queries = memory + Shape::kStages * Shape::kStageBytes;
    queries_ = reinterpret_cast<Fragment*>(queries) + team() * kBlocks * Shape::kSteps * kTeam;
    scratch_ =
        reinterpret_cast<float*>(queries + Shape::kQueryBytes + team() * Shape::kScratchBytes);
  }

  // All teams of the block together. `flag` is shared.
  QUIRE_DEVICE void run(int* flag) {
    // Stages begin at multiples of their own length.
    const int first = item_.key_begin / Tile::kKeys / kTeams * kTeams;
    const int last = (item_.key_end + Tile::kKeys - 1) / Tile::kKeys;
    TileLoader<Stored, kDims> loader;
    loader.begin(args_, item_);
    loader.look_up(args_, item_, first + team());
    load(loader, first, 0);
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      Rows& rows = rows_[b];
      rows.start(args_, item_, (b * kTeams + team()) * Rows::kRows);
      rows.load_queries(args_, item_, [this, b](int step, const Fragment& fragment) {
        queries_[(b * Shape::kSteps + step) * kTeam + lane()] = fragment;
      });
    }
    find_full_keys();
    sync_team();
    int stage = 0;
    QUIRE_NO_UNROLL
    for (int tile = first; tile < last; tile += kTeams) {
      async_wait<0>();
      sync_block();  // this stage is here, and the other one has been read
      load(loader, tile + kTeams, 1 - stage);
      QUIRE_NO_UNROLL
      for (int part = 0; part < kTeams; part += Shape::kTiles) {
        attend_part((tile + part) * Tile::kKeys,
                    stages_ + stage * Shape::kStageBytes + part * Tile::kBytes, flag);
      }
      stage = 1 - stage;
    }
    async_wait<0>();
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) rows_[b].finish();
  }

  // The rows that are whole to the output, those of a split to the workspace.
  QUIRE_DEVICE void store() const {
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      QUIRE_UNROLL
      for (int h = 0; h < 2; ++h) store_row(rows_[b], h);
    }
  }

 private:
  QUIRE_DEVICE void load(TileLoader<Stored, kDims>& loader, int tile, int stage) {
    loader.load(args_, item_, tile + team(),
                stages_ + stage * Shape::kStageBytes + team() * Tile::kBytes,
                tile + kTeams + team());
    // Tiles past the end are not loaded, but multiplied with weights of 0.
    if ((tile + team()) * Tile::kKeys >= item_.key_end && tile * Tile::kKeys < item_.key_end) {
      auto* at =
          reinterpret_cast<Sixteen*>(stages_ + stage * Shape::kStageBytes + team() * Tile::kBytes);
      for (int i = lane(); i < Tile::kBytes / 16; i += kTeam) at[i] = {};
    }
  }

  // kTiles tiles of a stage, from `first_key` on.
  QUIRE_DEVICE void attend_part(int first_key, unsigned char* tiles, int* flag) {
    if (first_key >= item_.key_end) return;
    typename Rows::Scores s[kBlocks];
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) Rows::clear(s[b]);
    const auto queries = [this](int b, int step) {
      return queries_[(b * Shape::kSteps + step) * kTeam + lane()];
    };
    Products::template multiply_keys<kBlocks, Shape::kTiles>(
        tiles, queries, [&s](int b, int n) -> float(&)[4] { return s[b][n]; });
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      rows_[b].weigh(args_, item_, first_key, tiles, scratch_, s[b]);
    }
    if (hides_some(first_key)) take_out_non_finite(tiles, s, flag);
    add_values(tiles, s);
    if (Rows::needs_rest_of_weights(args_)) {
      QUIRE_UNROLL
      for (int b = 0; b < kBlocks; ++b) Rows::keep_rest(s[b]);
      add_values(tiles, s);
    }
  }

  QUIRE_DEVICE void add_values(const unsigned char* tiles, typename Rows::Scores (&s)[kBlocks]) {
    QUIRE_UNROLL
    for (int t = 0; t < Shape::kTiles; ++t) {
      Products::template multiply_values<kBlocks>(
          tiles + t * Tile::kBytes,
          [&s, t](int b, int n) -> float(&)[4] { return s[b][t * (Tile::kKeys / 8) + n]; },
          [this](int b, int n) -> float(&)[4] { return rows_[b].o[n]; });
    }
  }

  // Whether some row of the item may not see some key of a part; the same for all teams.
  QUIRE_DEVICE bool hides_some(int first_key) const {
    return first_key < full_begin_ || first_key + Rows::kKeys > full_end_;
  }
  // The keys that all rows of the item see, by mask and alignment.
  QUIRE_DEVICE void find_full_keys() {
    full_begin_ = rows_[0].by_element ? item_.key_end : item_.key_begin;
    full_end_ = item_.key_end;
    if (item_.all_visible || rows_[0].by_element || args_.alignment == Alignment::kUnaligned) {
      return;
    }
    SequenceView sequence;
    sequence.q_len = item_.q_len;
    sequence.kv_len = item_.kv_len;
    const int first_token = item_.first_row / args_.group;
    const int last_token = (item_.first_row + item_.num_rows - 1) / args_.group;
    full_begin_ = static_cast<int>(
        positions_seen(args_.mask, query_position(sequence, last_token), item_.kv_len).begin);
    full_end_ = static_cast<int>(
        positions_seen(args_.mask, query_position(sequence, first_token), item_.kv_len).end);
  }

  // Infinite and NaN values reach only the rows that see them.
  QUIRE_DEVICE void take_out_non_finite(unsigned char* tiles,
                                        const typename Rows::Scores (&s)[kBlocks], int* flag) {
    bool found = false;
    QUIRE_NO_UNROLL
    for (int t = team(); t < Shape::kTiles; t += kTeams) {
      found = found || Tile::has_non_finite_values(tiles + t * Tile::kBytes);
    }
    sync_block();  // the flag has been read by all
    if (thread_index() == 0) *flag = 0;
    sync_block();
    if (found && lane() == 0) atomic_add(flag, 1);
    sync_block();
    if (*flag == 0) return;
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      Rows::to_scratch(s[b], scratch_);
      QUIRE_NO_UNROLL
      for (int t = 0; t < Shape::kTiles; ++t) {
        add_non_finite<Stored, kDims, RowsDown>(
            tiles + t * Tile::kBytes, scratch_ + t * Tile::kKeys, Rows::kKeys, rows_[b].o);
      }
    }
    sync_block();  // all teams have added them
    QUIRE_NO_UNROLL
    for (int t = team(); t < Shape::kTiles; t += kTeams) {
      Tile::clear_non_finite(tiles + t * Tile::kBytes);
    }
    sync_block();
  }

  QUIRE_DEVICE void store_row(const Rows& rows, int h) const {
    const int row = rows.row_of(h);
    if (row >= item_.num_rows) return;
    const bool is_split = item_.num_splits > 1;
    const std::int64_t partial = item_.partial_row + row;
    OutputRow to{0, 0};
    float factor = rows.v_unit;
    if (is_split) {
      if (lane() % 4 == 0) {
        args_.partial_sums[2 * partial] = rows.maximum(h);
        args_.partial_sums[2 * partial + 1] = rows.sum[h];
      }
    } else {
      to = output_row(args_, item_, row);
      factor *= finish_row(args_, to, rows.maximum(h), rows.sum[h], lane() % 4 == 0);
    }
    const int value_dim = args_.cache.value_dim;
    const MutableTensorView& out = args_.output.out;
    const std::int64_t base = to.token * out.strides[0] + to.head * out.strides[1];
    QUIRE_UNROLL
    for (int n = 0; n < kDims / 8; ++n) {
      QUIRE_UNROLL
      for (int c = 0; c < 2; ++c) {
        const int dim = Products::value_dim(n, c);
        if (dim >= value_dim) continue;
        const float x = rows.o[n][2 * h + c] * factor;
        if (is_split) {
          args_.partial_values[partial * args_.value_stride + dim] = x;
        } else if (out.dtype == DType::kF32) {
          static_cast<float*>(out.data)[base + dim * out.strides[2]] = x;
        } else {
          static_cast<std::uint16_t*>(out.data)[base + dim * out.strides[2]] =
              out.dtype == DType::kBF16 ? from_float<BFloat16>(x).bits
                                        : from_float<Float16>(x).bits;
        }
      }
    }
  }

  const AttendArgs& args_;
  const Item& item_;
  unsigned char* stages_;
  Fragment* queries_;
  float* scratch_;
  int full_begin_ = 0;
  int full_end_ = 0;
  Rows rows_[kBlocks];
};

template <class Stored, int kDims>
QUIRE_DEVICE void attend_tile(const AttendArgs& args) {
  using Shape = TileShape<Stored, kDims>;
  unsigned char* memory = shared_memory();
  auto& shared = *reinterpret_cast<TileShared*>(memory + Shape::kSharedBytes - sizeof(TileShared));
  const int num_items = *args.fault == kNoFault ? *args.num_items : 0;
  int index = block_index();
  QUIRE_NO_UNROLL
  while (index < num_items) {
    store_item_piece(&shared.item, load_item_piece(args, index));
    int taken = 0;
    if (thread_index() == 0) taken = num_blocks() + atomic_add(args.next_item, 1);
    sync_block();
    const Item& item = shared.item;
    {
      TileTeam<Stored, kDims> state(args, item, memory);
      state.run(&shared.flag);
      state.store();
    }
    const bool is_split = item.num_splits > 1;
    if (thread_index() == 0) shared.slot = taken;
    sync_block();
    index = shared.slot;
    if (is_split) {
      const int splits_before = count_split(args, item);
      if (thread_index() == 0) shared.flag = is_last_split(args, item, splits_before) ? 1 : 0;
      sync_block();
      if (shared.flag != 0) merge_rows(args, item);
      sync_block();
    }
  }
  finish_items(args);
}

}  // namespace quire::gpu
