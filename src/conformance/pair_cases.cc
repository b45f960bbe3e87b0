// SPDX-License-Identifier: Apache-2.0
// The full suite: every pair of values of two dimensions meets in some case, and random
// combinations of all of them.
//
// A case is a choice of one value per dimension. Choices that contradict each other are repaired
// towards the first value of a dimension, which goes with everything. Pairs are covered greedily:
// start from one that is still missing, try random completions, keep the one that covers most. All
// of it follows from fixed seeds, so the list is the same everywhere.
#include <array>
#include <set>
#include <tuple>

#include "conformance/case_builder.h"
#include "conformance/index.h"
#include "conformance/random.h"

namespace quire::conformance {
namespace {

enum Dimension : std::uint8_t {
  kFamily,
  kDims,
  kGroup,
  kBlockSize,
  kQuery,
  kKv,
  kMask,
  kSoftcap,
  kAlibi,
  kSinks,
  kBias,
  kTree,
  kCache,
  kTable,
  kShared,
  kArrival,
  kTensors,
  kPadding,
  kData,
  kOutput,
  kNumDimensions,
};

enum Family : std::uint8_t { kDecode, kVerify, kPrefill, kMixed, kEncoder, kCross };

struct Dims {
  int head, value;
  bool v_in_k;
};

constexpr std::array<Dims, 18> kDimValues = {{{64, 64, false},
                                              {32, 32, false},
                                              {40, 40, false},
                                              {72, 72, false},
                                              {80, 80, false},
                                              {96, 96, false},
                                              {112, 112, false},
                                              {120, 120, false},
                                              {128, 128, false},
                                              {160, 160, false},
                                              {192, 192, false},
                                              {256, 256, false},
                                              {512, 512, false},
                                              {192, 128, false},
                                              {64, 256, false},
                                              {576, 512, true},
                                              {96, 64, true},
                                              {64, 64, true}}};
constexpr std::array<int, 9> kGroupValues = {4, 1, 2, 3, 5, 7, 8, 16, 32};
constexpr std::array<int, 10> kBlockValues = {16, 1, 2, 3, 8, 19, 32, 64, 128, 256};
constexpr std::array<TreeStyle, 4> kTreeValues = {TreeStyle::kNone, TreeStyle::kBranching,
                                                  TreeStyle::kDepths, TreeStyle::kSomePlain};
constexpr std::array<Arrival, 3> kArrivalValues = {Arrival::kStored, Arrival::kAppended,
                                                   Arrival::kFused};
constexpr std::array<TensorStyle, 4> kTensorValues = {TensorStyle::kDense, TensorStyle::kFusedRows,
                                                      TensorStyle::kHeadMajor, TensorStyle::kOdd};
constexpr std::array<DataStyle, 4> kDataValues = {DataStyle::kNormal, DataStyle::kGrowing,
                                                  DataStyle::kShrinking, DataStyle::kLarge};

// Index of the chosen value, by dimension.
using Choice = std::array<std::int64_t, kNumDimensions>;

// How many values a dimension has. Masks are none, and those of the family.
Choice num_values() {
  Choice count{};
  count[kFamily] = 6;
  count[kDims] = std::ssize(kDimValues);
  count[kGroup] = std::ssize(kGroupValues);
  count[kBlockSize] = std::ssize(kBlockValues);
  count[kQuery] = std::ssize(query_types());
  count[kKv] = std::ssize(kv_types());
  count[kMask] = 1 + std::ssize(two_sided_masks());
  count[kSoftcap] = count[kAlibi] = count[kSinks] = 2;
  count[kBias] = 1 + std::ssize(bias_styles());
  count[kTree] = std::ssize(kTreeValues);
  count[kCache] = std::ssize(cache_places()) + 1;  // the last is ragged
  count[kTable] = count[kShared] = count[kPadding] = 2;
  count[kArrival] = std::ssize(kArrivalValues);
  count[kTensors] = std::ssize(kTensorValues);
  count[kData] = std::ssize(kDataValues);
  count[kOutput] = 3;  // with lse, without, f32 with lse
  return count;
}

bool is_ragged(const Choice& choice) {
  return choice[kCache] == std::ssize(cache_places());
}

bool fits_pair_tiles(const Choice& choice) {
  const Dims& dims = kDimValues[at(choice[kDims])];
  const int block_size = kBlockValues[at(choice[kBlockSize])];
  return block_size % 16 == 0 && dims.head % 2 == 0 && (dims.v_in_k || dims.value % 16 == 0);
}

// Makes a choice consistent.
void repair(Choice& choice) {
  const Dims& dims = kDimValues[at(choice[kDims])];
  if (choice[kFamily] == kCross) choice[kMask] = choice[kAlibi] = 0;
  if (choice[kFamily] != kDecode && choice[kFamily] != kVerify) choice[kTree] = 0;
  if (is_ragged(choice)) {
    choice[kBlockSize] = 1;  // the size 1
    choice[kArrival] = choice[kTable] = 0;
    return;
  }
  const NamedCache& place = cache_places()[at(choice[kCache])];
  const bool is_packed = place.style == CacheStyle::kPacked;
  const bool is_uneven = dims.head != dims.value && place.packing != KvPacking::kKvPerToken;
  if (is_packed && (dims.v_in_k || is_uneven)) choice[kCache] = 0;
  if (place.style == CacheStyle::kPairTiled && !fits_pair_tiles(choice)) choice[kCache] = 0;
}

std::vector<SequenceShape> sequences_of(std::int64_t family) {
  switch (family) {
    case kDecode:
      return {{1, 1}, {1, 17}, {1, 64}, {1, 130}, {1, 33}, {1, 0}};
    case kVerify:
      return {{4, 40}, {2, 65}, {9, 9}, {1, 129}, {8, 24}};
    case kPrefill:
      return {{7, 7}, {20, 33}, {17, 17}, {3, 60}, {6, 2}};
    case kMixed:
      return {{1, 50}, {12, 12}, {0, 5}, {3, 70}, {1, 1}, {17, 40}};
    case kEncoder:
      return {{13, 13}, {1, 1}, {18, 18}, {5, 30}, {9, 4}};
    default:
      return {{3, 21}, {1, 64}, {9, 0}, {0, 9}, {12, 5}, {2, 130}};
  }
}

const char* family_name(std::int64_t family) {
  constexpr std::array<const char*, 6> kNames = {"decode", "decode",  "prefill",
                                                 "mixed",  "prefill", "cross"};
  return kNames[at(family)];
}

// What differs from the first values, in words.
std::string name_of(const Choice& choice) {
  const Dims& dims = kDimValues[at(choice[kDims])];
  std::string name =
      concat("d", dims.head, "x", dims.value, dims.v_in_k ? "_v_in_k" : "", "-g",
             kGroupValues[at(choice[kGroup])], "-b", kBlockValues[at(choice[kBlockSize])], "-",
             dtype_name(query_types()[at(choice[kQuery])]), "-",
             kv_type_name(kv_types()[at(choice[kKv])]));
  constexpr std::array<const char*, kNumDimensions> kWords = {
      "",        "",        "",        "",        "",     "",      "mask",
      "softcap", "alibi",   "sinks",   "bias",    "tree", "cache", "table",
      "shared",  "arrival", "tensors", "padding", "data", "output"};
  if (choice[kFamily] == kVerify) name += "-verify";
  if (choice[kFamily] == kEncoder) name += "-encoder";
  for (std::int64_t d = kMask; d < kNumDimensions; ++d) {
    if (choice[at(d)] > 0) name += concat("-", kWords[at(d)], choice[at(d)]);
  }
  return name;
}

void apply_scores(CaseBuilder& builder, const Choice& choice) {
  if (choice[kFamily] == kCross) builder.cross();
  if (choice[kFamily] == kEncoder) builder.mask({.causal = false});
  if (choice[kMask] > 0) {
    Mask mask = two_sided_masks()[at(choice[kMask] - 1)].mask;
    mask.causal = choice[kFamily] != kEncoder;
    builder.mask(mask);
  }
  if (choice[kSoftcap] != 0) builder.softcap(4.0F);
  if (choice[kAlibi] != 0) builder.alibi();
  if (choice[kSinks] != 0) builder.sinks();
  const DType q_dtype = query_types()[at(choice[kQuery])];
  if (choice[kBias] > 0) {
    const bool in_f32 = choice[kBias] % 2 == 1;
    builder.bias(bias_styles()[at(choice[kBias] - 1)].style, in_f32 ? DType::kF32 : q_dtype);
  }
  if (choice[kTree] > 0) builder.tree(kTreeValues[at(choice[kTree])]);
}

void add_choice(const Choice& choice, const char* kind, std::vector<Case>& cases) {
  const Dims& dims = kDimValues[at(choice[kDims])];
  const int group = kGroupValues[at(choice[kGroup])];
  const int kv_heads = group >= 16 ? 1 : 2;
  const KvType& kv = kv_types()[at(choice[kKv])];
  CaseBuilder builder(concat(family_name(choice[kFamily]), "/", kind, "/", name_of(choice)),
                      Suite::kFull, sequences_of(choice[kFamily]));
  builder.dims(dims.head, dims.value)
      .heads(group * kv_heads, kv_heads)
      .block_size(kBlockValues[at(choice[kBlockSize])])
      .query(query_types()[at(choice[kQuery])])
      .kv(kv.dtype, kv.scales)
      .arrival(kArrivalValues[at(choice[kArrival])], query_types()[at(choice[kArrival])])
      .data(kDataValues[at(choice[kData])]);
  apply_scores(builder, choice);
  if (is_ragged(choice)) {
    builder.cache(CacheStyle::kRagged);
  } else {
    const NamedCache& place = cache_places()[at(choice[kCache])];
    builder.cache(place.style).order(place.order).with([&](Case& c) { c.packing = place.packing; });
  }
  builder.with([&](Case& c) {
    c.spec.kv.v_in_k = dims.v_in_k;
    c.spec.features.lse = choice[kOutput] != 1;
    if (choice[kOutput] == 2) c.spec.out_dtype = DType::kF32;
    c.table = choice[kTable] != 0 ? TableStyle::kIndexed : TableStyle::kPadded;
    c.shared_blocks = choice[kShared];
    c.tensors = kTensorValues[at(choice[kTensors])];
    c.padding_rows = 2 * choice[kPadding];
    c.padding_slots = choice[kPadding] != 0;
  });
  builder.add_to(cases);
}

// Two values of two dimensions, the lower dimension first.
struct Pair {
  std::int64_t first_dimension, first, second_dimension, second;
  friend bool operator<(const Pair& a, const Pair& b) noexcept {
    return std::tie(a.first_dimension, a.first, a.second_dimension, a.second) <
           std::tie(b.first_dimension, b.first, b.second_dimension, b.second);
  }
};

template <class F>
void for_each_pair(const Choice& choice, F&& f) {
  for (std::int64_t a = 0; a < kNumDimensions; ++a) {
    for (std::int64_t b = a + 1; b < kNumDimensions; ++b) {
      f(Pair{a, choice[at(a)], b, choice[at(b)]});
    }
  }
}

std::set<Pair> all_pairs(const Choice& count) {
  std::set<Pair> pairs;
  for (std::int64_t a = 0; a < kNumDimensions; ++a) {
    for (std::int64_t b = a + 1; b < kNumDimensions; ++b) {
      for (std::int64_t x = 0; x < count[at(a)]; ++x) {
        for (std::int64_t y = 0; y < count[at(b)]; ++y) pairs.insert({a, x, b, y});
      }
    }
  }
  return pairs;
}

Choice random_choice(const Choice& count, Random& random) {
  Choice choice{};
  for (std::int64_t d = 0; d < kNumDimensions; ++d) choice[at(d)] = random.below(count[at(d)]);
  return choice;
}

// The best of some completions of a pair; without the pair itself if it contradicts itself.
Choice complete(const Pair& pair, const Choice& count, const std::set<Pair>& missing,
                Random& random) {
  constexpr int kTries = 12;
  Choice best{};
  std::int64_t most = -1;
  for (int n = 0; n < kTries; ++n) {
    Choice choice = random_choice(count, random);
    choice[at(pair.first_dimension)] = pair.first;
    choice[at(pair.second_dimension)] = pair.second;
    repair(choice);
    std::int64_t gain = 0;
    for_each_pair(choice,
                  [&](const Pair& p) { gain += static_cast<std::int64_t>(missing.count(p)); });
    // A completion that keeps the pair is better than any that does not.
    const bool keeps = choice[at(pair.first_dimension)] == pair.first &&
                       choice[at(pair.second_dimension)] == pair.second;
    if (keeps) gain += 1000;
    if (gain <= most) continue;
    most = gain;
    best = choice;
  }
  return best;
}

}  // namespace

void add_pair_cases(std::vector<Case>& cases) {
  const Choice count = num_values();
  std::set<Pair> missing = all_pairs(count);
  Random random(seed_of("pairs"));
  while (!missing.empty()) {
    const Pair pair = *missing.begin();
    const Choice choice = complete(pair, count, missing, random);
    missing.erase(pair);  // also if no choice can hold it
    bool is_new = false;
    for_each_pair(choice, [&](const Pair& p) { is_new |= missing.erase(p) > 0; });
    const bool keeps = choice[at(pair.first_dimension)] == pair.first &&
                       choice[at(pair.second_dimension)] == pair.second;
    if (keeps || is_new) add_choice(choice, "pairs", cases);
  }
  constexpr int kNumRandom = 400;
  for (int n = 0; n < kNumRandom; ++n) {
    Choice choice = random_choice(count, random);
    repair(choice);
    add_choice(choice, "random", cases);
  }
}

}  // namespace quire::conformance
