// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over many keys: decode and verification. At most 8 * kGroups packed rows
// are the columns of the matrix products, so K and V are read once for all of them. The teams of a
// thread block share the keys of an item: each streams its own tiles of keys through its own ring
// in shared memory and needs no barrier of the block until its keys are done; then the teams'
// states are merged in their order.
//
// A thread block has a run of items, one after another: splits of a unit that follow each other
// need its queries once, and the first ones of a unit are folded as they come (row_states.h).
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

// Between the last keys of a grid and the first of the next memory would rest. So the next grid
// starts when all keys of this one have been asked for (a tile later: 1x8192 takes 3 % longer;
// three tiles earlier: most take 0.5 % longer), and its thread blocks ask for their first bytes
// before they may read them. With two groups of rows the loop, which has no register to spare, was
// 3 % slower for it.
template <int kGroups>
inline constexpr bool kOverlapsNext = kGroups == 1;
inline constexpr int kEarlyBytes = 64 * 1024;
inline constexpr int kEarlyBytesOfMany = 96 * 1024;  // where K and V exceed the cache

// What the block shares besides the teams' memory.
struct StreamShared {
  Item items[3];                // the current one, the next and the last
  std::int32_t ids[kFirstIds];  // of the run's start
  float factors[kStreamRows];   // 8-bit: powers of two that the queries were divided by
  HeadScales scales;            // 8-bit: of the queries' head
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
  // Where a value lies in it: eights of a row are permuted by it, so that lanes stay apart.
  QUIRE_DEVICE static int state_place(int row, int dim) {
    return row * kDims + (dim ^ (8 * (row / 2 % 4)));
  }
  // Of each row: the teams' weights, the factors of the fold, that of the output, and none.
  static constexpr int kWeights = kTeams + 4;
  static constexpr int kScratchBytes = Rows::kScratchBytes;
  // Ids of the tile that is loaded while tile i is attended to came with tile i - 1, or before.
  using Loader = TileLoader<Stored, kDims, kTeams, kStages, true>;
  static constexpr int kTeamBytes = kRingBytes + kScratchBytes + 2 * Loader::kIdBytes;
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
  // [teams][ring, scratch, ids], [queries], then the block's sums, weights and flags.
  static constexpr int kSharedBytes = kTeams * kTeamBytes + kQueryBytes +
                                      kRows * (2 * kTeams + kWeights) * 4 +
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

  // ring [kTeamBytes], with scratch [kScratchBytes] in it, is the team's own, in shared memory;
  // queries [kQueryBytes], factors [kRows] and scales are the block's.
  QUIRE_DEVICE StreamTeam(const AttendArgs& args, unsigned char* ring, float* scratch,
                          unsigned char* queries, float* factors, HeadScales* scales)
      : args_(args),
        ring_(ring),
        scratch_(scratch),
        raw_(queries),
        factors_(factors),
        scales_(scales),
        ids_(reinterpret_cast<std::int32_t*>(ring + Shape::kRingBytes + Shape::kScratchBytes)) {}

  // Starts the loads of the first tiles, whose ids have come by now; those of the first item are
  // first_ids. The ring is free.
  QUIRE_DEVICE void begin(const Item* item, const std::int32_t* first_ids) {
    item_ = item;
    const int first = first_tile(*item);
    if (first_ids != nullptr) {
      loader_.begin(args_, *item, ids(), first, first_ids);
    } else {
      loader_.resume(args_, *item, ids());
    }
    QUIRE_NO_UNROLL
    for (int stage = 0; stage < Shape::kStages - 1; ++stage) {
      if (stage > 0) sync_team();
      loader_.load(args_, *item, first + stage * Shape::kTeams, stage,
                   ring_ + stage * Tile::kBytes);
    }
    slot_ = Shape::kStages - 1;
  }
  // With the next loads: the ids that the item after this one begins with.
  QUIRE_DEVICE void fetch_ids(const Item& following) {
    other_ids_ = !other_ids_;
    Shape::Loader::fetch_ids(args_, following, ids(), first_tile(following));
  }

  // The block's queries, and the scales of its head, in three steps: from global memory to
  // registers, where they may be on their way for long; to shared memory; and behind a barrier,
  // from there to fragments.
  QUIRE_DEVICE void fetch_queries(const Item& item) {
    if constexpr (Tile::kScalesQueries) {
      if (thread_index() < 2) {
        scale_ = head_scale(args_, thread_index() == 0 ? KvTensor::kK : KvTensor::kV, item.kv_head);
      }
    }
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
    if constexpr (Tile::kScalesQueries) {
      if (thread_index() == 0) scales_->k = scale_;
      if (thread_index() == 1) scales_->v = scale_;
    }
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

  // Before the keys of an item; its queries are those of the last one unless they are new.
  QUIRE_DEVICE void start(bool new_queries) {
    HeadScales scales;
    if constexpr (Tile::kScalesQueries) scales = *scales_;
    rows_.start(args_, *item_, 0, scratch_, scales);
    rows_.clear_state();
    if constexpr (Tile::kScalesQueries) {
      QUIRE_UNROLL
      for (int slot = 0; slot < Map::kSlots; ++slot) {
        rows_.row_scale[slot] *= factors_[Map::row(slot)];
      }
    }
    if (!new_queries) return;
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

  // starts_next: when all tiles have been asked for, the next grid may start.
  QUIRE_DEVICE void run(bool starts_next) {
    const int num_tiles = (item_->key_end + kKeys - 1) / kKeys;
    int stage = 0;
    QUIRE_NO_UNROLL
    for (int tile = first_tile(*item_); tile < num_tiles; tile += Shape::kTeams) {
      const int ahead = stage == 0 ? Shape::kStages - 1 : stage - 1;
      const int next = tile + (Shape::kStages - 1) * Shape::kTeams;
      loader_.load(args_, *item_, next, slot_, ring_ + ahead * Tile::kBytes);
      slot_ = slot_ == Shape::kStages ? 0 : slot_ + 1;
      if (starts_next & (next + Shape::kTeams >= num_tiles)) let_next_grid_start();
      async_wait<Shape::kStages - 1>();
      sync_team();
      attend_tile(tile * kKeys, ring_ + stage * Tile::kBytes);
      sync_team();  // the next load overwrites this stage
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
    if (starts_next) let_next_grid_start();  // a team may have no tile
    async_commit();  // ids of the next item, if there was no tile to come with
    async_wait<0>();
    rows_.finish();
    sync_team();  // all lanes are done with the ring
  }

  // Values [row, kDims] to the last stage, maximum and sum to `sums` [row, 2].
  QUIRE_DEVICE void store(float* sums) const {
    auto* values = reinterpret_cast<float*>(ring_ + Shape::kStateBegin);
    const int num_rows =
        item_->num_rows;  // what is stored below might be it, for all that is known
    QUIRE_UNROLL
    for (int slot = 0; slot < Map::kSlots; ++slot) {
      const int row = Map::row(slot);
      if (row >= num_rows) continue;
      const float unit = rows_.v_unit[Rows::scale_index(slot)];
      QUIRE_UNROLL
      for (int n = 0; n < Map::num_values(kDims); ++n) {
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (Map::slot(n, i) != slot) continue;
          values[Shape::state_place(row, Products::value_dim(n, i))] = rows_.o[n][i] * unit;
        }
      }
      if (lane() < Map::kFirstOther) {
        sums[2 * row] = rows_.maximum(slot);
        sums[2 * row + 1] = rows_.sum[slot];
      }
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

  QUIRE_DEVICE static int first_tile(const Item& item) { return item.key_begin / kKeys + team(); }
  // Of the items in turns, so that those of the next one can come early.
  QUIRE_DEVICE std::int32_t* ids() const {
    return ids_ + (other_ids_ ? Shape::Loader::kIdBytes / 4 : 0);
  }

  QUIRE_DEVICE void attend_tile(int first_key, unsigned char* tile) {
    typename Rows::Scores s;
    Rows::clear(s);
    const DType stored = args_.cache.format.dtype;
    const auto query = [this](int, int step) {
      if constexpr (Shape::kQueriesStay) {
        return fragments()[step * kTeam + lane()];
      } else {
        return q_[step];
      }
    };
    with_format<Stored>(
        stored, [&](auto number) { Products::template multiply_keys<1>(tile, query, s, number); });
    const bool hides = rows_.weigh(args_, *item_, first_key, tile, scratch_, s);
    if (QUIRE_UNLIKELY(any(hides)) && Tile::has_non_finite_values(tile, stored)) {
      Rows::to_scratch(s, 0, 0, scratch_);
      rows_.add_non_finite_values(tile, stored, scratch_, 0);
      Tile::clear_non_finite(tile, stored);
    }
    const bool twice = Rows::needs_rest_of_weights(args_);
    QUIRE_NO_UNROLL
    for (int pass = 0; pass < (twice ? 2 : 1); ++pass) {
      if (pass == 1) Rows::keep_rest(s);
      with_format<Stored>(
          stored, [&](auto number) { Products::multiply_values(tile, s, rows_.o, number); });
    }
  }

  const AttendArgs& args_;
  unsigned char* ring_;
  float* scratch_;
  unsigned char* raw_;
  float* factors_;
  HeadScales* scales_;
  const Item* item_ = nullptr;  // in shared memory
  typename Shape::Loader loader_;
  std::int32_t* ids_;  // of blocks; the team's own, in shared memory
  bool other_ids_ = false;
  int slot_ = 0;  // of the ids of the next tile to load
  Rows rows_;
  Fragment q_[Shape::kQueriesStay ? 1 : kSteps];
  Sixteen pieces_[Shape::kRawPieces];  // of the next item's queries
  float scale_ = 1.0F;                 // of its K or V
};

// The state of the rows of a run's current unit: of all its splits up to the last one if the run
// has them from the first on, else of the last one alone. A thread holds the same values all along,
// and the first threads a row each besides.
template <int kDims, int kRows, int kThreads>
struct RunState {
  static constexpr int kFours = (kRows * kDims / 4 + kThreads - 1) / kThreads;
  float values[kFours][4];
  float maximum;
  float sum;
  int first_split;  // of the unit that the run has

  QUIRE_DEVICE void clear() {
    maximum = negative_infinity();
    sum = 0.0F;
    QUIRE_UNROLL
    for (auto& four : values) {
      QUIRE_UNROLL
      for (float& x : four) x = 0.0F;
    }
  }
};

// What becomes of a run's state when an item of it is done.
enum class StateEnd : std::uint8_t {
  kGoesOn,   // more splits will be folded
  kPartial,  // to the workspace: not all splits of the unit
  kOutput,
};

// Merges the teams' states of an item, in their order, into the state of the run. The values of the
// first team are at `states`, those of the next Shape::kTeamBytes on; sums [teams, rows, 2];
// weights [rows, Shape::kWeights]. A thread reads what it needs of shared memory before it writes,
// wherever it can: the compiler does not know that they are apart, and would wait at every step.
template <class Shape, int kDims>
QUIRE_DEVICE void finish_stream_item(const AttendArgs& args, const Item& item, StateEnd end,
                                     const unsigned char* states, const float* sums, float* weights,
                                     RunState<kDims, Shape::kRows, Shape::kThreads>& state) {
  constexpr int kTeams = Shape::kTeams;
  const int thread = thread_index();
  const int num_rows = item.num_rows;
  if (thread < num_rows) {
    const int row = thread;
    float maxima[kTeams];
    float team_sums[kTeams];
    float maximum = negative_infinity();
    QUIRE_UNROLL
    for (int t = 0; t < kTeams; ++t) {
      maxima[t] = sums[2 * (t * Shape::kRows + row)];
      team_sums[t] = sums[2 * (t * Shape::kRows + row) + 1];
      maximum = max_of(maximum, maxima[t]);
    }
    const float base = maximum == negative_infinity() ? 0.0F : maximum;
    float sum = 0.0F;
    float* row_weights = weights + row * Shape::kWeights;
    QUIRE_UNROLL
    for (int t = 0; t < kTeams; ++t) {
      const float weight = exp2_fast(maxima[t] - base);
      row_weights[t] = weight;
      sum += weight * team_sums[t];
    }
    const float larger = max_of(state.maximum, maximum);
    const FoldFactors factors = fold_factors(state.maximum, maximum, larger);
    state.maximum = larger;
    state.sum = fold_value(factors, state.sum, sum);
    row_weights[kTeams] = factors.kept;
    row_weights[kTeams + 1] = factors.added;
    if (end == StateEnd::kPartial) {
      args.partial_sums[2 * (item.partial_row + row)] = state.maximum;
      args.partial_sums[2 * (item.partial_row + row) + 1] = state.sum;
    } else if (end == StateEnd::kOutput) {
      row_weights[kTeams + 2] =
          finish_row(args, output_row(args, item, row), state.maximum, state.sum, true);
    }
  }
  sync_block();
  const int value_dim = args.cache.value_dim;
  QUIRE_UNROLL
  for (int i = 0; i < RunState<kDims, Shape::kRows, Shape::kThreads>::kFours; ++i) {
    const int index = 4 * (i * Shape::kThreads + thread);
    const int row = index / kDims;
    const int dim = index % kDims;
    if (row >= num_rows || dim >= value_dim) continue;
    const float* own_weights = weights + row * Shape::kWeights;
    float row_weights[kTeams + 2];
    Float4 values[kTeams];
    QUIRE_UNROLL
    for (int w = 0; w < kTeams + 2; ++w) row_weights[w] = own_weights[w];
    QUIRE_UNROLL
    for (int t = 0; t < kTeams; ++t) {
      values[t] = *reinterpret_cast<const Float4*>(states + t * Shape::kTeamBytes +
                                                   4 * Shape::state_place(row, dim));
    }
    float total[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    QUIRE_UNROLL
    for (int t = 0; t < kTeams; ++t) {
      const float weight = row_weights[t];
      const bool saw = weight != 0.0F;  // else its values may be anything
      total[0] = saw ? fused(weight, values[t].x, total[0]) : total[0];
      total[1] = saw ? fused(weight, values[t].y, total[1]) : total[1];
      total[2] = saw ? fused(weight, values[t].z, total[2]) : total[2];
      total[3] = saw ? fused(weight, values[t].w, total[3]) : total[3];
    }
    const FoldFactors factors{row_weights[kTeams], row_weights[kTeams + 1]};
    float(&folded)[4] = state.values[i];
    QUIRE_UNROLL
    for (int c = 0; c < 4; ++c) folded[c] = fold_value(factors, folded[c], total[c]);
    if (end == StateEnd::kPartial) {
      *reinterpret_cast<Float4*>(args.partial_values +
                                 (item.partial_row + row) * args.value_stride +
                                 dim) = {folded[0], folded[1], folded[2], folded[3]};
    } else if (end == StateEnd::kOutput) {
      store_four(args, output_row(args, item, row), dim, folded, own_weights[kTeams + 2]);
    }
  }
}

// Brings near what a thread block begins with, while the last grid ends: its start and, by what
// that says, the first of its keys, unless the call has other grids, which are busy then. The plan
// may not be written yet, or just be: then keys are brought that nobody needs, but of the cache,
// for heads and blocks are looked at.
template <class Stored, int kDims, int kGroups>
QUIRE_DEVICE void prefetch_run(const AttendArgs& args) {
  if (thread_index() == 0) prefetch(args.fault);
  if (thread_index() == 1) prefetch(args.runs + block_index());
  const RunStart* start = args.starts + block_index();
  if (thread_index() == 2) prefetch(&start->item);
  if (thread_index() == 3) prefetch(&start->ids);
  if (thread_index() == 4) prefetch(&start->ids[kFirstIds - 1]);
  if (!kOverlapsNext<kGroups> || !args.ends_call) return;
  const KvCacheView& cache = args.cache;
  const bool are_whole = cache.k_strides.token == kDims && cache.v_strides.token == kDims;
  if (!args.has_simple_tiles || !are_whole || cache.format.v_in_k) return;
  // A thread asks for the keys or the values of one block id.
  constexpr int kPieceBytes = kKeysPerId * KeyTile<Stored, kDims>::kRowBytes;
  static_assert(2 * kFirstIds <= StreamShape<Stored, kDims, kGroups>::kThreads);
  const int id = thread_index() / 2;
  const int early = args.keys_exceed_cache ? kEarlyBytesOfMany : kEarlyBytes;
  if (id >= kFirstIds || id * 2 * kPieceBytes >= early) return;
  const int begin = load_shared_by_blocks(&start->item.key_begin);
  const int end = load_shared_by_blocks(&start->item.key_end);
  const int head = load_shared_by_blocks(&start->item.kv_head);
  const std::int64_t block = load_shared_by_blocks(&start->ids[id]);
  const std::int64_t key = std::int64_t{begin & -kFirstIdKeys} + id * kKeysPerId;
  // One branch, so that all loads are under way at once.
  const bool is_there = (head >= 0) & (head < args.num_kv_heads) & (block >= 0) &
                        (block < cache.num_blocks) & (key + kKeysPerId > begin) & (key < end);
  if (!is_there) return;
  const bool is_k = thread_index() % 2 == 0;
  const KvStrides& strides = is_k ? cache.k_strides : cache.v_strides;
  const std::int64_t token = key & ((1 << args.block_shift) - 1);
  prefetch_bytes(static_cast<const Stored*>(is_k ? cache.k : cache.v) +
                     strided_offset(strides, block, head, token),
                 kPieceBytes);
}

// What can be known of the next item is fetched while the current one is computed, and its first
// tiles are on their way while the current one is merged.
template <class Stored, int kDims, int kGroups>
QUIRE_DEVICE void attend_stream(const AttendArgs& args) {
  using Shape = StreamShape<Stored, kDims, kGroups>;
  constexpr int kRows = Shape::kRows;
  constexpr int kTeams = Shape::kTeams;
  unsigned char* memory = shared_memory();
  unsigned char* queries = memory + kTeams * Shape::kTeamBytes;
  auto* sums = reinterpret_cast<float*>(queries + Shape::kQueryBytes);
  float* weights = sums + 2 * kTeams * kRows;
  auto& shared = *reinterpret_cast<StreamShared*>(weights + kRows * Shape::kWeights);
  unsigned char* ring = memory + team() * Shape::kTeamBytes;
  StreamTeam<Stored, kDims, kGroups> team_state(args, ring,
                                                reinterpret_cast<float*>(ring + Shape::kRingBytes),
                                                queries, shared.factors, &shared.scales);
  RunState<kDims, kRows, Shape::kThreads> state;
  state.clear();
  // All that is loaded here is loaded at once: the item before it is known whether there is one.
  const Sixteen first_piece = load_start_piece(args.starts + block_index());
  const std::uint64_t fault = *args.fault;
  int index = args.runs[block_index()];
  const int end = args.runs[block_index() + 1];
  if (index >= end || fault != kNoFault) return;
  store_start_piece(&shared.items[0], shared.ids, first_piece);
  const Sixteen second_item = index + 1 < end ? load_item_piece(args.items + index + 1) : Sixteen{};
  sync_block();
  if constexpr (Shape::kFetchesEarly) team_state.fetch_queries(shared.items[0]);
  team_state.begin(&shared.items[0], shared.ids);
  store_item_piece(&shared.items[1], second_item);
  state.first_split = shared.items[0].split;
  bool is_new_unit = true;
  int current = 0;
  QUIRE_NO_UNROLL
  for (; index < end; ++index) {
    const Item& item = shared.items[current];
    const int next = current == 2 ? 0 : current + 1;
    const Item& following = shared.items[next];
    const bool has_next = index + 1 < end;
    if (is_new_unit) {
      if constexpr (!Shape::kFetchesEarly) team_state.fetch_queries(item);
      team_state.stage_queries();
    }
    sync_block();
    // The item after the next, in the place of the last one.
    if (index + 2 < end) {
      copy_item_piece(&shared.items[next == 2 ? 0 : next + 1], args.items + index + 2);
    }
    team_state.start(is_new_unit);
    is_new_unit = has_next && following.split == 0;
    if constexpr (Shape::kFetchesEarly) {
      if (is_new_unit) team_state.fetch_queries(following);
    }
    if (has_next) team_state.fetch_ids(following);
    team_state.run(kOverlapsNext<kGroups> && args.ends_call && !has_next);
    team_state.store(sums + 2 * team() * kRows);
    if (has_next) team_state.begin(&following, nullptr);
    sync_block();

    const int splits = item.split + 1;  // of the unit up to here
    const bool is_last = splits == item.num_splits || !has_next;
    const bool folds = state.first_split == 0;
    const StateEnd to = folds && splits == item.num_splits ? StateEnd::kOutput
                        : folds && !is_last                ? StateEnd::kGoesOn
                                                           : StateEnd::kPartial;
    finish_stream_item<Shape, kDims>(args, item, to, memory + Shape::kStateBegin, sums, weights,
                                     state);
    if (is_last && to == StateEnd::kPartial) {
      sync_block();
      const int first = add_splits(args, item, splits - state.first_split, folds);
      if (thread_index() == 0) shared.flag = first;
      sync_block();
      if (shared.flag >= 0) {
        // The first tiles of the next item, if there is one, are on their way to the other stages.
        const int begin = has_next ? Shape::kStateBegin : 0;
        merge_rows(args, item, shared.flag,
                   {ring + begin, (Shape::kRingBytes - begin) / kMergeStateBytes});
      }
    }
    if (to != StateEnd::kGoesOn) state.clear();
    if (is_new_unit) state.first_split = 0;
    current = next;
  }
}

}  // namespace quire::gpu
