// SPDX-License-Identifier: Apache-2.0
// One conformance case: a pure description of inputs and of what is checked. It holds no data, no
// pointer and no tolerance; those follow from it (problem.h, oracle.h), the same on every machine.
//
// The one list of cases (case_list.h) serves the tests, `quire check` and `quire bench`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/attention_spec.h"
#include "quire/kv_cache.h"

namespace quire::conformance {

// Each suite holds the ones before it: seconds, about a minute per backend, and everything.
enum class Suite : std::uint8_t { kSmoke, kStandard, kFull };

enum class Check : std::uint8_t {
  kAttend,      // out and lse within tolerance; nothing else changed
  kInvariance,  // and equal bits alone, in another order, at another place, in larger bounds
  kCascade,     // partial results over disjoint key ranges, merged
  kAppend,      // stored bits, scales included; no other byte changed
  kMerge,       // merge of given partials, with empty ones
  kCopyBlocks,  // blocks of two layers: within a cache, across caches, to the host and back
  kCopyRegion,  // some tokens of one block
  kExport,      // to plain and back
};

// What the tolerance asks of a case whose errors are averaged.
inline constexpr std::int64_t kMinOutputs = 4096;

struct SequenceShape {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
};

// How Q, K and V are drawn.
enum class DataStyle : std::uint8_t {
  kNormal,     // standard normal
  kGrowing,    // logits rise along the sequence, by hundreds
  kShrinking,  // and fall
  kLarge,      // logits in the hundreds, values in the thousands
  kMarked,   // each dim of V is 0 but for one key, at a border: one key lost or counted twice shows
  kSpecial,  // append only: infinities, NaN, ties, zeros and extremes among normal values
};

// Where K and V lie.
enum class CacheStyle : std::uint8_t {
  kPreferred,    // the backend's own layout
  kPlainRecord,  // plain_layout
  kPairTiled,    // pair_tiled_layout
  kSeparate,     // two tensors of the caller, with slack between tokens and heads
  kUnaligned,    // the same at odd element offsets and strides
  kPacked,       // one tensor of the caller that holds both, see Case::packing
  kRagged,       // K [rows, heads, dim] and V without blocks
};

// How new K and V reach the cache before attend.
enum class Arrival : std::uint8_t {
  kStored,    // they are there
  kAppended,  // by append
  kFused,     // by attend itself
};

// How Q, new K and V, out and lse lie in memory. Whatever lies between their elements is NaN.
enum class TensorStyle : std::uint8_t {
  kDense,
  kFusedRows,  // rows longer than needed, as slices of one QKV tensor
  kHeadMajor,  // [heads, rows, dim], and slack
  kOdd,        // odd strides and an odd first element
};

enum class TableStyle : std::uint8_t { kPadded, kIndexed };

enum class BiasStyle : std::uint8_t {
  kNone,
  kFull,         // every stride set
  kSharedHeads,  // stride 0 for heads
  kKeysOnly,     // stride 0 for heads and queries: a padding mask, with -inf
  kRelative,     // stride 0 for sequences: one table for all
};

enum class TreeStyle : std::uint8_t {
  kNone,
  kChain,      // what causality would say
  kBranching,  // random ancestors
  kDepths,     // random ancestors, positions by depth
  kSomePlain,  // as kDepths, but every second sequence plainly causal
};

struct Case {
  std::string name;  // family/what/value
  Suite suite = Suite::kStandard;
  Check check = Check::kAttend;
  AttentionSpec spec;  // kv.layout follows from `cache`
  std::vector<SequenceShape> sequences;

  float scale = 0.0F;  // 0: 1 / sqrt(head_dim)
  float softcap = 20.0F;
  DataStyle data = DataStyle::kNormal;
  BiasStyle bias = BiasStyle::kNone;
  DType bias_dtype = DType::kF32;
  TreeStyle tree = TreeStyle::kNone;

  CacheStyle cache = CacheStyle::kPlainRecord;
  KvOrder order = KvOrder::kBlockHeadTokenDim;  // of the caller's tensors
  KvPacking packing = KvPacking::kKvFirst;      // of kPacked
  TableStyle table = TableStyle::kPadded;
  std::int64_t shared_blocks = 0;  // leading blocks (ragged: rows) that sequences have in common
  std::int64_t first_block = 0;    // blocks below it are never touched: large offsets
  bool shuffled = true;            // blocks in random places
  // What no row sees holds ordinary numbers, not NaN: some operations weigh it with 0.
  bool finite_garbage = false;

  Arrival arrival = Arrival::kStored;
  DType new_kv_dtype = DType::kBF16;
  bool padding_slots = false;  // rows of new K and V with slot -1 between the others

  TensorStyle tensors = TensorStyle::kDense;
  std::int64_t padding_rows = 0;  // rows of no sequence before, between and after the others
  int num_partials = 2;           // of kCascade and kMerge
};

const char* suite_name(Suite suite) noexcept;

// The data of a case follow from its name alone.
std::uint64_t seed_of(std::string_view name) noexcept;

// Rows of Q that the sequences bring.
std::int64_t num_tokens(const Case& c) noexcept;

}  // namespace quire::conformance
