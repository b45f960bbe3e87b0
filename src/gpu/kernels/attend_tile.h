// SPDX-License-Identifier: Apache-2.0
// Attention of many rows: prefill and chunks. Each team holds blocks of 16 packed rows in
// registers, which share what it loads of keys and values, and all teams read the same ones: a
// stage of shared memory holds one key tile for each team to bring, and while one stage is computed
// the next is on its way.
//
// There are two loops: a plain one, which has its registers for the products, and a general one for
// scores that are more than scaled products, for trees, and for values that are not finite where
// some row does not see them: an item in which the plain one meets such values begins again.
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
  int num_items;  // like the ends below: not in a register
  int flag;       // tiles that are not finite behind a mask; then the first state to merge
  // The keys that all rows of the item see, by mask and alignment. A register would be spilled, and
  // local memory comes behind all copies that are under way.
  int full_begin;
  int full_end;
};

template <class Stored, int kDims>
struct TileShape {
  using Tile = KeyTile<Stored, kDims>;
  static constexpr int kTeams = 4;
  static constexpr int kThreads = kTeams * kTeam;
  static constexpr int kMinBlocks = kDims == 256 ? 1 : 2;
  using Map = RowsDown<tile_rows(kDims) / kTeams / 16>;
  static constexpr int kStageBytes = kTeams * Tile::kBytes;
  static constexpr int kStages = 2;
  static constexpr int kQueryBytes = Map::kRows * kDims * 2;  // of a team
  static_assert(tile_rows(kDims) * kDims * 4 <= kStages * kStageBytes);
  static constexpr int kScratchBytes = RowBlock<Stored, kDims, 1, Map>::kScratchBytes;  // of a team
  // Ids come with the tiles of the stage before, and lie in the slot of their stage.
  using Loader = TileLoader<Stored, kDims, kTeams, kStages - 1, false>;
  // What follows from the lane: registers that hold it through a loop would be spilled.
  using Lane = typename Loader::Lane;
  using Own = typename TileProducts<Stored, kDims, Map>::Own;
  // [stages], then of each team [queries], [scratch] and [ids], then of each thread [lane] and
  // [own].
  static constexpr int kQueryBegin = kStages * kStageBytes;
  static constexpr int kScratchBegin = kQueryBegin + kTeams * kQueryBytes;
  static constexpr int kIdBegin = kScratchBegin + kTeams * kScratchBytes;
  static constexpr int kLaneBegin = kIdBegin + kTeams * Loader::kIdBytes;
  static_assert(kLaneBegin % 16 == 0);
  static constexpr int kOwnBegin = kLaneBegin + kThreads * static_cast<int>(sizeof(Lane));
  static constexpr int kSharedBytes =
      kOwnBegin + kThreads * static_cast<int>(sizeof(Own)) + static_cast<int>(sizeof(TileShared));
};

template <class Stored, int kDims, bool kGeneral>
class TileTeam {
 public:
  using Shape = TileShape<Stored, kDims>;
  using Tile = typename Shape::Tile;
  using Map = typename Shape::Map;
  // Tiles that are attended to at a time: of 128 dims scores with more than 32 keys were spilled.
  static constexpr int kTiles = kGeneral ? 1 : (kDims == 128 ? 32 : 64) / Tile::kKeys;
  using Rows = RowBlock<Stored, kDims, kTiles, Map, kGeneral>;
  using Fragment = typename Rows::Fragment;
  using Products = typename Rows::Products;
  static constexpr int kTeams = Shape::kTeams;

  QUIRE_DEVICE TileTeam(const AttendArgs& args, TileShared& shared, unsigned char* memory)
      : args_(args), item_(shared.item), shared_(shared), stages_(memory) {
    queries_ = memory + Shape::kQueryBegin + team() * Shape::kQueryBytes;
    scratch_ =
        reinterpret_cast<float*>(memory + Shape::kScratchBegin + team() * Shape::kScratchBytes);
  }

  // All teams of the block together.
  QUIRE_DEVICE void run() {
    // Stages begin at multiples of their own length.
    const int first = item_.key_begin / Tile::kKeys / kTeams * kTeams;
    const int last = (item_.key_end + Tile::kKeys - 1) / Tile::kKeys;
    typename Shape::Loader loader;
    loader.begin(args_, item_, ids(), first + team(), nullptr);
    own_lane() = loader.own_lane();
    own_places() = Products::own_places();
    load(first, 0);
    HeadScales scales;
    if constexpr (Tile::kScalesQueries) {
      scales = {head_scale(args_, KvTensor::kK, item_.kv_head),
                head_scale(args_, KvTensor::kV, item_.kv_head)};
    }
    rows_.start(args_, item_, team() * Rows::kRows, scratch_, scales);
    load_queries();
    async_commit();
    rows_.clear_state();
    find_full_keys();
    sync_team();
    int stage = 0;
    QUIRE_NO_UNROLL
    for (int tile = first; tile < last; tile += kTeams) {
      async_wait<0>();
      sync_block();  // this stage is here, and the other one has been read
      load(tile + kTeams, 1 - stage);
      unsigned char* tiles = stages_ + stage * Shape::kStageBytes;
      const int first_key = tile * Tile::kKeys;
      const typename Products::Own own = own_places();
      const bool is_full =
          first_key >= shared_.full_begin && first_key + kTeams * Tile::kKeys <= shared_.full_end;
      // As in RowBlock::start: with a negative scale the largest product is not the largest score.
      if (!kGeneral && QUIRE_LIKELY(is_full && args_.params.scale >= 0.0F)) {
        QUIRE_NO_UNROLL
        for (int part = 0; part < kTeams; part += kTiles) {
          attend_part<true>(first_key + part * Tile::kKeys, tiles + part * Tile::kBytes, own);
        }
      } else {
        const int key_end = item_.key_end;
        QUIRE_NO_UNROLL
        for (int part = 0; part < kTeams; part += kTiles) {
          if (first_key + part * Tile::kKeys >= key_end) break;
          attend_part<false>(first_key + part * Tile::kKeys, tiles + part * Tile::kBytes, own);
        }
      }
      stage = 1 - stage;
    }
    async_wait<0>();
    rows_.finish();
  }

  // The rows that are whole to the output, those of a split to the workspace. All teams are done
  // with the stages, which take the rows on their way.
  QUIRE_DEVICE void store() {
    auto* values = reinterpret_cast<float*>(stages_ + team() * (Rows::kRows * kDims * 4));
    QUIRE_UNROLL
    for (int slot = 0; slot < Map::kSlots; ++slot) {
      const float factor = rows_.v_unit[Rows::scale_index(slot)] * finish(slot);
      QUIRE_UNROLL
      for (int n = slot / 2; n < Map::num_values(kDims); n += Map::kBlocks) {
        QUIRE_UNROLL
        for (int c = 0; c < 2; ++c) {
          values[place(Map::row(slot), Products::value_dim(n, c))] =
              rows_.o[n][2 * (slot % 2) + c] * factor;
        }
      }
    }
    sync_team();
    const int num_left = item_.num_rows - rows_.first_row;
    const int num_rows = num_left < Rows::kRows ? num_left : Rows::kRows;
    if (item_.num_splits > 1) {
      store_partial(values, num_rows);
    } else if (args_.out_in_sixteens) {
      store_sixteens(values, num_rows);
    } else {
      store_numbers(values, num_rows);
    }
  }

 private:
  QUIRE_DEVICE std::int32_t* ids() const {
    return reinterpret_cast<std::int32_t*>(
        stages_ + Shape::kIdBegin + recomputed(thread_index()) / kTeam * Shape::Loader::kIdBytes);
  }
  QUIRE_DEVICE typename Shape::Own& own_places() const {
    return reinterpret_cast<typename Shape::Own*>(stages_ + Shape::kOwnBegin)[thread_index()];
  }
  QUIRE_DEVICE typename Shape::Lane& own_lane() const {
    return reinterpret_cast<typename Shape::Lane*>(stages_ + Shape::kLaneBegin)[thread_index()];
  }

  // The queries of the team's rows: those for 16-bit keys lie like the keys of a tile, those for
  // 8-bit ones as fragments.
  QUIRE_DEVICE void load_queries() {
    if constexpr (!Tile::kIs16Bit) {
      rows_.load_scaled_queries(args_, item_,
                                [this](int block, int step, const Fragment& fragment) {
                                  scaled_query(block, step) = fragment;
                                });
    } else {
      copy_queries();
    }
  }
  QUIRE_DEVICE void copy_queries() {
    QUIRE_UNROLL_4
    for (int i = lane(); i < Rows::kRows * Tile::kChunks; i += kTeam) {
      const int row = i / Tile::kChunks;
      const int chunk = i % Tile::kChunks;
      const bool valid = rows_.first_row + row < item_.num_rows && 8 * chunk < args_.cache.head_dim;
      const std::int64_t at = valid ? Rows::query_offset(args_, item_, rows_.first_row + row) +
                                          8 * chunk * args_.q.strides[2]
                                    : 0;
      const auto* q = static_cast<const std::uint16_t*>(args_.q.data) + at;
      unsigned char* to = queries_ + row * Tile::kRowBytes + 16 * (chunk ^ Tile::k_swizzle(row));
      if (args_.q_in_sixteens) {
        async_copy16(to, q, valid);
      } else {
        *reinterpret_cast<Sixteen*>(to) = valid ? gather_query(q, args_.q.strides[2]) : Sixteen{};
      }
    }
  }
  QUIRE_DEVICE Fragment query(int block, int step, const typename Products::Own& own) const {
    Fragment fragment;
    if constexpr (Tile::kIs16Bit) {
      // Rows 0-7 and 8-15 of the lower eight dims, then of the upper eight.
      load_matrices(fragment.x, queries_ + Tile::matrix_row(own.v, step, 16 * block));
    } else {
      fragment = scaled_query(block, step);
    }
    return fragment;
  }
  QUIRE_DEVICE Fragment& scaled_query(int block, int step) const {
    return reinterpret_cast<Fragment*>(queries_)[(block * (kDims / 16) + step) * kTeam + lane()];
  }

  QUIRE_DEVICE void load(int tile, int stage) {
    unsigned char* to = stages_ + stage * Shape::kStageBytes + team() * Tile::kBytes;
    typename Shape::Loader loader;
    loader.resume(args_, item_, ids(), own_lane());
    const bool has_keys = loader.load(args_, item_, tile + team(), stage, to);
    // Tiles past the end are not loaded, but multiplied with weights of 0.
    if (QUIRE_UNLIKELY(!has_keys) && tile * Tile::kKeys < item_.key_end) {
      auto* at = reinterpret_cast<Sixteen*>(to);
      for (int i = lane(); i < Tile::kBytes / 16; i += kTeam) at[i] = {};
    }
  }

  // kTiles tiles of a stage, from `first_key` on. kAllFull: within the keys that all rows see.
  template <bool kAllFull>
  QUIRE_DEVICE void attend_part(int first_key, unsigned char* tiles,
                                const typename Products::Own& own) {
    if (!kGeneral && !kAllFull && hides_some(first_key)) find_non_finite(tiles);
    typename Rows::Scores s;
    Rows::clear(s);
    const auto queries = [this, &own](int block, int step) { return query(block, step, own); };
    with_format<Stored>(stored(), [&](auto number) {
      Products::template multiply_keys<kTiles>(tiles, own, queries, s, number);
    });
    rows_.template weigh<kAllFull>(args_, item_, first_key, tiles, scratch_, s);
    if (kGeneral && hides_some(first_key)) take_out_non_finite(tiles, s);
    add_values(tiles, own, s);
    if (Rows::needs_rest_of_weights(args_)) {
      Rows::keep_rest(s);
      add_values(tiles, own, s);
    }
  }

  QUIRE_DEVICE void add_values(const unsigned char* tiles, const typename Products::Own& own,
                               const typename Rows::Scores& weights) {
    with_format<Stored>(stored(), [&](auto number) {
      Products::template multiply_values<kTiles>(tiles, own, weights, rows_.o, number);
    });
  }
  QUIRE_DEVICE DType stored() const { return args_.cache.format.dtype; }

  // Whether some row of the item may not see some key of a part; the same for all teams.
  QUIRE_DEVICE bool hides_some(int first_key) const {
    return first_key < shared_.full_begin || first_key + Rows::kKeys > shared_.full_end;
  }
  QUIRE_DEVICE void find_full_keys() {
    if (thread_index() != 0) return;
    shared_.full_begin = Rows::keys_of_row(args_, item_, item_.num_rows - 1).begin;
    shared_.full_end =
        Rows::is_by_element(args_) ? shared_.full_begin : Rows::keys_of_row(args_, item_, 0).end;
  }

  // A team looks at its share of the tiles.
  QUIRE_DEVICE void find_non_finite(const unsigned char* tiles) const {
    QUIRE_NO_UNROLL
    for (int t = team(); t < kTiles; t += kTeams) {
      if (Tile::has_non_finite_values(tiles + t * Tile::kBytes, stored()) && lane() == 0) {
        atomic_add(&shared_.flag, 1);
      }
    }
  }

  // Infinite and NaN values reach only the rows that see them.
  QUIRE_DEVICE void take_out_non_finite(unsigned char* tiles, const typename Rows::Scores& s) {
    sync_block();  // the flag has been read by all
    if (thread_index() == 0) shared_.flag = 0;
    sync_block();
    find_non_finite(tiles);
    sync_block();
    if (shared_.flag == 0) return;
    QUIRE_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      QUIRE_UNROLL
      for (int block = 0; block < Map::kBlocks; ++block) {
        Rows::to_scratch(s, block, t, scratch_);
        rows_.add_non_finite_values(tiles + t * Tile::kBytes, stored(), scratch_, block);
      }
    }
    sync_block();  // all teams have added them
    QUIRE_NO_UNROLL
    for (int t = team(); t < kTiles; t += kTeams) {
      Tile::clear_non_finite(tiles + t * Tile::kBytes, stored());
    }
    sync_block();
  }

  // Where a value lies on its way: fours of a row are permuted by it, so that lanes stay apart.
  QUIRE_DEVICE static int place(int row, int dim) { return row * kDims + (dim ^ (4 * (row & 7))); }

  // What ends a row besides its values, and the factor of these.
  QUIRE_DEVICE float finish(int slot) const {
    const int row = rows_.row_of(slot);
    if (row >= item_.num_rows) return 0.0F;
    const float maximum = rows_.maximum(slot);
    const bool is_first_lane = lane() % 4 == 0;
    if (item_.num_splits == 1) {
      return finish_row(args_, output_row(args_, item_, row), maximum, rows_.sum[slot],
                        is_first_lane);
    }
    if (is_first_lane) {
      args_.partial_sums[2 * (item_.partial_row + row)] = maximum;
      args_.partial_sums[2 * (item_.partial_row + row) + 1] = rows_.sum[slot];
    }
    return 1.0F;
  }

  // The team's rows, which lie in shared memory at `values`: to the workspace, or to the output.
  QUIRE_DEVICE void store_partial(const float* values, int num_rows) const {
    float* to = args_.partial_values + (item_.partial_row + rows_.first_row) * args_.value_stride;
    QUIRE_UNROLL_4
    for (int row = 0; row < num_rows; ++row) {
      QUIRE_UNROLL
      for (int dim = 4 * lane(); dim < kDims; dim += 4 * kTeam) {
        if (dim >= args_.cache.value_dim) continue;
        *reinterpret_cast<Float4*>(to + row * args_.value_stride + dim) = four(values, row, dim);
      }
    }
  }
  QUIRE_DEVICE void store_sixteens(const float* values, int num_rows) const {
    const MutableTensorView& out = args_.output.out;
    constexpr int kLanes = kDims / 8;  // for a row
    const int dim = lane() % kLanes * 8;
    if (dim >= args_.cache.value_dim) return;
    const bool is_bf16 = out.dtype == DType::kBF16;
    QUIRE_UNROLL_4
    for (int row = lane() / kLanes; row < num_rows; row += kTeam / kLanes) {
      const Float4 low = four(values, row, dim);
      const Float4 high = four(values, row, dim + 4);
      const OutputRow to = output_row(args_, item_, rows_.first_row + row);
      *reinterpret_cast<Sixteen*>(value_bits(out, to, dim)) =
          is_bf16 ? packed(low, high, BFloat16{}) : packed(low, high, Float16{});
    }
  }
  QUIRE_DEVICE void store_numbers(const float* values, int num_rows) const {
    QUIRE_NO_UNROLL
    for (int row = 0; row < num_rows; ++row) {
      const OutputRow to = output_row(args_, item_, rows_.first_row + row);
      QUIRE_NO_UNROLL
      for (int dim = lane(); dim < args_.cache.value_dim; dim += kTeam) {
        store_value(args_.output.out, to, dim, values[place(row, dim)]);
      }
    }
  }
  QUIRE_DEVICE static const Float4& four(const float* values, int row, int dim) {
    return *reinterpret_cast<const Float4*>(values + place(row, dim));
  }
  template <class Number>
  QUIRE_DEVICE static Sixteen packed(const Float4& low, const Float4& high, Number number) {
    return {{pack(low.x, low.y, number), pack(low.z, low.w, number), pack(high.x, high.y, number),
             pack(high.z, high.w, number)}};
  }

  const AttendArgs& args_;
  const Item& item_;
  TileShared& shared_;
  unsigned char* stages_;
  unsigned char* queries_;  // of the team
  float* scratch_;
  Rows rows_;
};

// Returns whether the rows of the item have been stored.
template <class Stored, int kDims>
QUIRE_DEVICE bool attend_item_plainly(const AttendArgs& args, TileShared& shared,
                                      unsigned char* memory) {
  TileTeam<Stored, kDims, false> state(args, shared, memory);
  state.run();
  sync_block();
  if (shared.flag != 0) return false;
  state.store();
  return true;
}
// A function of its own: what it needs of registers must not be taken from the plain loop.
template <class Stored, int kDims>
QUIRE_DEVICE_RARE void attend_item_generally(const AttendArgs& args, TileShared& shared,
                                             unsigned char* memory) {
  TileTeam<Stored, kDims, true> state(args, shared, memory);
  state.run();
  sync_block();
  state.store();
}

// A function of its own, too. All teams are done with the stages.
template <class Stored, int kDims>
QUIRE_DEVICE_RARE void merge_tile_rows(const AttendArgs& args, const TileShared& shared,
                                       unsigned char* memory) {
  using Shape = TileShape<Stored, kDims>;
  constexpr int kTeamBytes = Shape::kStages * Shape::Tile::kBytes;
  merge_rows(args, shared.item, shared.flag,
             {memory + team() * kTeamBytes, kTeamBytes / kMergeStateBytes});
}

template <class Stored, int kDims>
QUIRE_DEVICE void attend_tile(const AttendArgs& args) {
  using Shape = TileShape<Stored, kDims>;
  unsigned char* memory = shared_memory();
  auto& shared = *reinterpret_cast<TileShared*>(memory + Shape::kSharedBytes - sizeof(TileShared));
  const bool is_general = RowBlock<Stored, kDims, 1, typename Shape::Map>::is_by_element(args);
  const std::uint64_t fault = *args.fault;
  const int num_listed = *args.num_items;  // asked for before the fault is known
  if (thread_index() == 0) shared.num_items = fault == kNoFault ? num_listed : 0;
  int index = first_item_taken(args, &shared.slot);
  sync_block();
  QUIRE_NO_UNROLL
  while (index < shared.num_items) {
    store_item_piece(&shared.item, load_item_piece(args.items + index));
    int taken = 0;
    if (thread_index() == 0) {
      taken = take_item(args);
      shared.flag = 0;
    }
    sync_block();
    const Item& item = shared.item;
    if (is_general || !attend_item_plainly<Stored, kDims>(args, shared, memory)) {
      attend_item_generally<Stored, kDims>(args, shared, memory);
    }
    const bool is_split = item.num_splits > 1;
    if (thread_index() == 0) shared.slot = taken;
    sync_block();
    index = shared.slot;
    if (is_split) {
      const int first = add_splits(args, item, 1, false);
      if (thread_index() == 0) shared.flag = first;
      sync_block();
      if (shared.flag >= 0) merge_tile_rows<Stored, kDims>(args, shared, memory);
      sync_block();
    }
  }
  finish_items(args);
}

}  // namespace quire::gpu
