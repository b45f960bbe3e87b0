// SPDX-License-Identifier: Apache-2.0
// What the CPU backend promises whatever the threads are: equal bits, threads of the caller, and
// two backends that do not disturb each other. At every level of this machine.
#include "backends/cpu/cpu_backend.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "backends/reference/reference.h"
#include "base/number_formats.h"
#include "base/sanitizers.h"
#include "conformance/arrangement.h"
#include "conformance/case_builder.h"
#include "conformance/compare.h"
#include "conformance/loaded_batch.h"
#include "conformance/oracle.h"
#include "conformance/problem.h"
#include "conformance/random.h"
#include "quire/error.h"

namespace quire {
namespace {

using conformance::Arrangement;
using conformance::ArrangeOptions;
using conformance::Case;
using conformance::CaseBuilder;
using conformance::OutputData;
using conformance::Problem;
using conformance::Random;

std::unique_ptr<AttentionBackend> make_level(const std::string& level, int num_threads) {
  BackendOptions options;
  options.isa = level;
  options.num_threads = num_threads;
  return make_cpu_backend(options);
}

OutputData run(AttentionBackend& backend, const Problem& problem, const Arrangement& arrangement,
               conformance::Arrival arrival = conformance::Arrival::kStored) {
  conformance::LoadOptions load;
  load.arrival = arrival;
  load.spec = conformance::spec_for(backend, problem);
  conformance::LoadedBatch batch(backend, problem, arrangement, load);
  batch.run();
  return batch.output();
}

OutputData run(AttentionBackend& backend, const Problem& problem, const ArrangeOptions& options,
               conformance::Arrival arrival = conformance::Arrival::kStored) {
  return run(backend, problem, conformance::arrange(problem, options), arrival);
}

// Rows of no sequence hold what they held: NaN.
void expect_near(const OutputData& want, const OutputData& got, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.out.size(), want.out.size());
  std::size_t num_compared = 0;
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    if (std::isnan(want.out[i])) continue;
    ++num_compared;
    ASSERT_NEAR(got.out[i], want.out[i], tolerance) << what << ", " << i;
  }
  EXPECT_GT(num_compared, want.out.size() / 2);
}

// Decodes with and without splits, chunks of prompts, and one sequence that sees nothing new.
Problem mixed_problem(conformance::CacheStyle cache) {
  std::vector<Case> cases;
  CaseBuilder("threads/mixed", conformance::Suite::kSmoke,
              {{1, 5000}, {1, 1}, {17, 1300}, {1, 1025}, {130, 200}, {1, 64}, {4, 2100}, {1, 700}})
      .cache(cache)
      .add_to(cases);
  return conformance::make_problem(cases.front());
}

// Some of the sequences in any order.
std::vector<std::int64_t> draw_batch(Random& random, std::int64_t num_sequences) {
  std::vector<std::int64_t> all;
  for (std::int64_t s = 0; s < num_sequences; ++s) all.push_back(s);
  for (std::size_t i = all.size() - 1; i > 0; --i) {
    std::swap(all[i], all[static_cast<std::size_t>(random.below(std::ssize(all)))]);
  }
  all.resize(static_cast<std::size_t>(1 + random.below(num_sequences)));
  return all;
}

TEST(CpuBackend, BitsDependOnNothingButTheSequence) {
  for (const std::string& level : cpu_isa_levels()) {
    for (const auto cache :
         {conformance::CacheStyle::kPreferred, conformance::CacheStyle::kSeparate}) {
      const Problem problem = mixed_problem(cache);
      const ArrangeOptions as_is = conformance::options_of(problem);
      const OutputData want = run(*make_level(level, 1), problem, as_is);
      Random random(7);
      for (int round = 0; round < 20; ++round) {
        ArrangeOptions other = as_is;
        other.order = draw_batch(random, std::ssize(problem.sequences));
        other.seed = random.next();
        other.padding_rows = random.below(3);
        const int num_threads = 1 + round % 8;
        const auto backend = make_level(level, num_threads);
        const auto found =
            conformance::compare_bits(problem, other.order, want, run(*backend, problem, other));
        ASSERT_FALSE(found) << level << ", " << num_threads << " threads: " << *found;
      }
      for (std::int64_t s = 0; s < std::ssize(problem.sequences); ++s) {
        ArrangeOptions alone = as_is;
        alone.order = {s};
        alone.seed = random.next();
        const auto backend = make_level(level, static_cast<int>(1 + s % 8));
        const auto found =
            conformance::compare_bits(problem, alone.order, want, run(*backend, problem, alone));
        ASSERT_FALSE(found) << level << ", alone: " << *found;
      }
    }
  }
}

// Enough splits for the last of them to be cut by heads (see WorkOrder.TheLastItemsAreCutFinely).
TEST(CpuBackend, BitsDoNotDependOnFineCuts) {
  std::vector<Case> cases;
  CaseBuilder("threads/fine", conformance::Suite::kSmoke, {{1, 9000}})
      .heads(32, 8)
      .cache(conformance::CacheStyle::kPreferred)
      .add_to(cases);
  cases.front().sequences.resize(1);
  const Problem problem = conformance::make_problem(cases.front());
  const ArrangeOptions as_is = conformance::options_of(problem);
  for (const std::string& level : cpu_isa_levels()) {
    const OutputData want = run(*make_level(level, 1), problem, as_is);
    for (const int num_threads : {2, 8}) {
      const auto found = conformance::compare_bits(
          problem, as_is.order, want, run(*make_level(level, num_threads), problem, as_is));
      EXPECT_FALSE(found) << level << ", " << num_threads << " threads: " << *found;
    }
  }
}

// Rows that begin at a window's edge within a chunk, in two blocks, with heads that one thread or
// two may hold: a block waits alone in the pipeline, or with others.
TEST(CpuBackend, BitsDoNotDependOnHowManyHeadsAThreadHas) {
  for (const auto& [dtype, scales] : {std::pair{DType::kBF16, ScaleGranularity::kNone},
                                      std::pair{DType::kI8, ScaleGranularity::kPerTokenHead},
                                      std::pair{DType::kF8E4M3, ScaleGranularity::kPerTokenHead}}) {
    for (const std::int32_t q_len : {33, 40, 48}) {
      for (const std::int32_t edge : {480, 488, 496, 504}) {
        constexpr std::int32_t kKeys = 900;
        std::vector<Case> cases;
        CaseBuilder("threads/window", conformance::Suite::kSmoke, {{q_len, kKeys}})
            .heads(2, 2)
            .kv(dtype, scales)
            .block_size(16)
            .mask({.causal = true, .window_left = kKeys - q_len - edge})
            .cache(conformance::CacheStyle::kPreferred)
            .add_to(cases);
        const Problem problem = conformance::make_problem(cases.front());
        ArrangeOptions alone = conformance::options_of(problem);
        alone.order = {0};
        for (const std::string& level : cpu_isa_levels()) {
          const OutputData want = run(*make_level(level, 1), problem, alone);
          const OutputData got = run(*make_level(level, 2), problem, alone);
          const auto found = conformance::compare_bits(problem, alone.order, want, got);
          ASSERT_FALSE(found) << level << ", q_len " << q_len << ", edge " << edge << ": "
                              << *found;
        }
      }
    }
  }
}

// Sequences whose keys are read together for all of them: each as if it were alone.
TEST(CpuBackend, BitsDoNotDependOnSharedBlocks) {
  for (const auto& [dtype, scales] : {std::pair{DType::kBF16, ScaleGranularity::kNone},
                                      std::pair{DType::kI8, ScaleGranularity::kPerTokenHead}}) {
    std::vector<Case> cases;
    CaseBuilder("threads/shared", conformance::Suite::kSmoke,
                {{1, 3000}, {1, 3000}, {1, 3010}, {1, 2990}, {1, 3000}, {2, 3000}, {1, 3100}})
        .kv(dtype, scales)
        .block_size(32)
        .cache(conformance::CacheStyle::kPreferred)
        .with([](Case& c) { c.shared_blocks = 70; })
        .add_to(cases);
    const Problem problem = conformance::make_problem(cases.front());
    const ArrangeOptions as_is = conformance::options_of(problem);
    for (const std::string& level : cpu_isa_levels()) {
      for (const int num_threads : {1, 3, 8}) {
        const OutputData together = run(*make_level(level, num_threads), problem, as_is);
        for (std::int64_t s = 0; s < std::ssize(problem.sequences); ++s) {
          ArrangeOptions alone = as_is;
          alone.order = {s};
          const OutputData want = run(*make_level(level, 1), problem, alone);
          const auto found = conformance::compare_bits(problem, alone.order, together, want);
          ASSERT_FALSE(found) << level << ", " << num_threads << " threads: " << *found;
        }
      }
    }
  }
}

// Multiplies one dim of the queries of a sequence in the first `num_heads` heads.
void stretch_queries(std::int64_t s, int num_heads, float factor, Problem& problem) {
  const auto& sequence = problem.sequences[static_cast<std::size_t>(s)];
  for (std::int64_t i = 0; i < sequence.q_len; ++i) {
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const std::int64_t row = (sequence.first_token + i) * problem.spec.num_q_heads + h;
      float& x = problem.q[static_cast<std::size_t>(row * problem.spec.head_dim + 3)];
      x = to_float(from_float<BFloat16>(x * factor));
    }
  }
}

// Queries whose numbers lie far apart, in some heads or in all, next to others, over int8 keys that
// they share: right, and each as if it were alone, whatever threads have which heads.
TEST(CpuBackend, QueriesOfAnySpreadOverInt8) {
  std::vector<Case> cases;
  CaseBuilder("threads/spread", conformance::Suite::kSmoke,
              {{1, 700}, {1, 700}, {4, 700}, {1, 700}, {1, 710}, {3, 50}})
      .heads(8, 4)
      .kv(DType::kI8, ScaleGranularity::kPerTokenHead)
      .block_size(32)
      .cache(conformance::CacheStyle::kPreferred)
      .with([](Case& c) { c.shared_blocks = 16; })
      .add_to(cases);
  Problem problem = conformance::make_problem(cases.front());
  stretch_queries(1, 8, 3e4F, problem);
  stretch_queries(2, 1, 50.0F, problem);
  stretch_queries(3, 1, 1e4F, problem);
  stretch_queries(4, 8, 1e30F, problem);
  stretch_queries(5, 3, 1e5F, problem);
  const ArrangeOptions as_is = conformance::options_of(problem);
  const std::unique_ptr<AttentionBackend> reference = make_reference_backend({});
  const OutputData want = run(*reference, problem, as_is);
  for (const std::string& level : cpu_isa_levels()) {
    const OutputData together = run(*make_level(level, 2), problem, as_is);
    expect_near(want, together, 0.03, level);
    for (std::int64_t s = 0; s < std::ssize(problem.sequences); ++s) {
      for (const int num_threads : {1, 4}) {
        ArrangeOptions alone = as_is;
        alone.order = {s};
        const OutputData got = run(*make_level(level, num_threads), problem, alone);
        const auto found = conformance::compare_bits(problem, alone.order, together, got);
        ASSERT_FALSE(found) << level << ", " << num_threads << " threads: " << *found;
      }
    }
  }
}

// Every level within the tolerance of the contract, lse included.
void expect_within_contract(const Problem& problem, const std::string& what) {
  const conformance::Expected expected = conformance::expect(problem);
  for (const std::string& level : cpu_isa_levels()) {
    const OutputData got = run(*make_level(level, 2), problem, conformance::options_of(problem));
    conformance::Accuracy accuracy;
    const auto found = conformance::compare(
        expected, got, {problem.num_tokens, problem.spec.num_q_heads, problem.spec.value_dim},
        conformance::RowNames(problem), accuracy);
    EXPECT_FALSE(found) << level << ", " << what << ": " << *found;
  }
}

Problem int8_problem(std::vector<conformance::SequenceShape> shapes, int head_dim, DType out) {
  std::vector<Case> cases;
  CaseBuilder("int8", conformance::Suite::kSmoke, std::move(shapes))
      .heads(8, 2)
      .dims(head_dim, 64)
      .kv(DType::kI8, ScaleGranularity::kPerTokenHead)
      .block_size(16)
      .cache(conformance::CacheStyle::kPreferred)
      .with([out](Case& c) { c.spec.out_dtype = out; })
      .add_to(cases);
  return conformance::make_problem(cases.front());
}

// Some dims of the queries are far larger than the others, and no key has anything there: the
// others decide. Also where a sum of their magnitudes has no place in f32.
TEST(CpuBackend, FarDimsOfQueriesCostTheOthersNothing) {
  struct Far {
    int head_dim;
    int num_far;
    float far;
    float others;
  };
  for (const auto& [head_dim, num_far, far, others] :
       {Far{32, 1, 20.0F, 1.0F}, Far{32, 1, 64.0F, 1.0F}, Far{32, 1, 3e4F, 1.0F},
        Far{128, 5, 100.0F, 1.0F}, Far{128, 5, 3e4F, 1.0F}, Far{128, 1, 1e38F, 1e34F}}) {
    for (const std::int32_t kv_len : {1, 300}) {
      Problem problem = int8_problem({{1, kv_len}}, head_dim, DType::kBF16);
      problem.scale /= others;
      for (std::size_t i = 0; i < problem.q.size(); ++i) {
        const bool is_far = static_cast<int>(i) % head_dim < num_far;
        problem.q[i] = to_float(from_float<BFloat16>(is_far ? far : problem.q[i] * others));
      }
      for (std::size_t i = 0; i < problem.k.stored.size(); ++i) {
        if (static_cast<int>(i) % head_dim < num_far) problem.k.stored[i] = 0.0F;
      }
      expect_within_contract(problem, "dims " + std::to_string(head_dim) + ", far " +
                                          std::to_string(far) + ", kv_len " +
                                          std::to_string(kv_len));
    }
  }
}

// Keys that take nearly all of the weight and bring nothing: what is left to the others counts.
// One, or as many as let the weights of a chunk do with fewer digits.
TEST(CpuBackend, HeavyKeysCostTheOthersNothing) {
  for (const DType out : {DType::kBF16, DType::kF32}) {
    for (const auto& [num_heavy, gap] :
         {std::pair{1, 6.0F}, std::pair{1, 8.0F}, std::pair{1, 10.0F}, std::pair{16, 8.0F},
          std::pair{40, 6.0F}, std::pair{40, 8.0F}, std::pair{40, 10.0F}, std::pair{40, 11.0F}}) {
      Problem problem = int8_problem({{1, 128}, {1, 700}, {3, 300}}, 64, out);
      const auto num_heads = static_cast<std::int64_t>(problem.spec.num_kv_heads);
      for (float& scale : problem.k.scales) scale = 3.0F / 127;
      for (float& scale : problem.v.scales) scale = 3.0F / 127;
      problem.v.max_magnitude = 3.0;
      for (std::size_t i = 0; i < problem.q.size(); i += 64) {
        problem.q[i] = to_float(from_float<BFloat16>(gap * 8 / 3));
      }
      for (std::size_t i = 0; i < problem.k.stored.size(); i += 64) problem.k.stored[i] = 0.0F;
      for (std::int64_t s = 0; s < std::ssize(problem.sequences); ++s) {
        for (std::int64_t i = 0; i < num_heavy * num_heads; ++i) {
          const std::int64_t first =
              (problem.slot(s, i / num_heads) * num_heads + i % num_heads) * 64;
          std::fill_n(problem.k.stored.begin() + first, 64, 0.0F);
          std::fill_n(problem.v.stored.begin() + first, 64, 0.0F);
          problem.k.stored[static_cast<std::size_t>(first)] = 127.0F;
        }
      }
      expect_within_contract(problem,
                             std::to_string(num_heavy) + " heavy keys, gap " + std::to_string(gap));
    }
  }
}

// Values that are all 0 have a scale of 1, far above those of the others: their weights must not
// cost the others their digits.
TEST(CpuBackend, ZerosCostTheOthersNothing) {
  for (const DType out : {DType::kBF16, DType::kF32}) {
    for (const auto& [num_zeros, magnitude] :
         {std::pair{24, 0.1F}, std::pair{64, 0.1F}, std::pair{24, 0.01F}, std::pair{1, 1e-4F},
          std::pair{24, 1e-4F}, std::pair{64, 1e-4F}}) {
      Problem problem = int8_problem({{1, 128}, {1, 700}, {3, 300}}, 64, out);
      const auto num_heads = static_cast<std::int64_t>(problem.spec.num_kv_heads);
      for (float& scale : problem.v.scales) scale = magnitude / 127;
      problem.v.max_magnitude = magnitude;
      for (std::int64_t s = 0; s < std::ssize(problem.sequences); ++s) {
        for (std::int64_t i = 0; i < num_zeros * num_heads; ++i) {
          const std::int64_t row = problem.slot(s, i / num_heads) * num_heads + i % num_heads;
          std::fill_n(problem.v.stored.begin() + row * 64, 64, 0.0F);
          problem.v.scales[static_cast<std::size_t>(row)] = 1.0F;
        }
      }
      expect_within_contract(
          problem, std::to_string(num_zeros) + " zeros beside " + std::to_string(magnitude));
    }
  }
}

// The last new keys are in a chunk of their own, and the tree hides all of them.
TEST(CpuBackend, NothingOfAChunkIsSeen) {
  for (const auto& [dtype, scales] : {std::pair{DType::kBF16, ScaleGranularity::kNone},
                                      std::pair{DType::kF8E4M3, ScaleGranularity::kPerTensor},
                                      std::pair{DType::kI8, ScaleGranularity::kPerTokenHead}}) {
    std::vector<Case> cases;
    CaseBuilder("tree", conformance::Suite::kSmoke, {{4, 131}})
        .heads(8, 2)
        .kv(dtype, scales)
        .block_size(16)
        .cache(conformance::CacheStyle::kPreferred)
        .tree(conformance::TreeStyle::kChain)
        .add_to(cases);
    Problem problem = conformance::make_problem(cases.front());
    for (std::int64_t s = 0; s < std::ssize(problem.sequences); ++s) {
      auto& tree = problem.sequences[static_cast<std::size_t>(s)].tree;
      for (std::size_t i = 0; i < tree.size(); ++i) tree[i] = i % 4 == 0 ? 1 : 0;
      for (std::int64_t j = 128; j < 131; ++j) {
        problem.seen[static_cast<std::size_t>(problem.slot(s, j))] = 0;
      }
    }
    expect_within_contract(problem, std::string(dtype_name(dtype)));
  }
}

// A scale of V that is not finite reaches those who see its key, in every dim that f32 gives it;
// one below 0 turns its key around.
TEST(CpuBackend, ScalesOfEveryKind) {
  const std::unique_ptr<AttentionBackend> reference = make_reference_backend({});
  for (const float scale :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<Case> cases;
    CaseBuilder("scale/not finite", conformance::Suite::kSmoke, {{1, 300}, {2, 90}, {40, 300}})
        .kv(DType::kI8, ScaleGranularity::kPerTokenHead)
        .block_size(16)
        .cache(conformance::CacheStyle::kPreferred)
        .add_to(cases);
    Problem problem = conformance::make_problem(cases.front());
    for (const std::int64_t s : {0, 2}) {
      const std::int64_t slot = problem.slot(s, 17);
      problem.v.scales[static_cast<std::size_t>(slot * problem.spec.num_kv_heads)] = scale;
    }
    const ArrangeOptions options = conformance::options_of(problem);
    const OutputData want = run(*reference, problem, options);
    for (const std::string& level : cpu_isa_levels()) {
      const OutputData got = run(*make_level(level, 2), problem, options);
      ASSERT_EQ(got.out.size(), want.out.size());
      for (std::size_t i = 0; i < want.out.size(); ++i) {
        ASSERT_EQ(std::isnan(got.out[i]), std::isnan(want.out[i])) << level << ", " << i;
        if (std::isnan(want.out[i])) continue;
        ASSERT_TRUE(got.out[i] == want.out[i] || std::abs(got.out[i] - want.out[i]) < 0.03)
            << level << ", " << i << ": " << got.out[i] << " instead of " << want.out[i];
      }
    }
  }
}

// Hidden keys stay hidden where the scale turns the order of scores around, or makes all equal; and
// the largest score wins where f32 has no digits left for the differences of scores.
TEST(CpuBackend, AnyFiniteScale) {
  const std::unique_ptr<AttentionBackend> reference = make_reference_backend({});
  for (const auto& [q_dtype, dtype, scales] :
       {std::tuple{DType::kBF16, DType::kBF16, ScaleGranularity::kNone},
        std::tuple{DType::kBF16, DType::kI8, ScaleGranularity::kPerTokenHead},
        std::tuple{DType::kF32, DType::kF32, ScaleGranularity::kNone}}) {
    std::vector<Case> cases;
    CaseBuilder("scale", conformance::Suite::kSmoke, {{1, 70}, {5, 40}, {33, 33}, {1, 1100}})
        .query(q_dtype)
        .kv(dtype, scales)
        .cache(conformance::CacheStyle::kPreferred)
        .add_to(cases);
    Problem problem = conformance::make_problem(cases.front());
    const ArrangeOptions options = conformance::options_of(problem);
    for (const float scale : {-0.5F, -1e-3F, 0.0F, 1e-30F, 1e9F, 1e12F, -1e12F, 1e30F}) {
      problem.scale = scale;
      const OutputData want = run(*reference, problem, options);
      for (const std::string& level : cpu_isa_levels()) {
        const OutputData got = run(*make_level(level, 2), problem, options);
        expect_near(want, got, 0.03, level + ", scale " + std::to_string(scale));
      }
    }
  }
}

// Of every `lanes` blocks, one token each, block `at` changes places with the last.
void swap_blocks(std::int64_t lanes, std::int64_t at, Arrangement& arrangement) {
  std::vector<std::int32_t> moved(static_cast<std::size_t>(arrangement.num_blocks));
  std::iota(moved.begin(), moved.end(), 0);
  for (std::int64_t i = 0; i + lanes <= arrangement.num_blocks; i += lanes) {
    std::swap(moved[static_cast<std::size_t>(i + at)],
              moved[static_cast<std::size_t>(i + lanes - 1)]);
  }
  const auto move = [&](std::vector<std::int32_t>& blocks) {
    for (std::int32_t& block : blocks) {
      if (block >= 0 && block < arrangement.num_blocks) {
        block = moved[static_cast<std::size_t>(block)];
      }
    }
  };
  move(arrangement.place);
  move(arrangement.indices);
}

// The scales of as many keys as a vector has lanes may begin and end as if they lay side by side,
// with others in between: the scales of a block lie kv_heads + 3 apart here.
TEST(CpuBackend, ScalesOfScatteredKeys) {
  struct Scattered {
    int num_kv_heads;
    std::int64_t lanes;
  };
  const std::unique_ptr<AttentionBackend> reference = make_reference_backend({});
  for (const auto& [num_kv_heads, lanes] : {Scattered{2, 16}, Scattered{4, 8}}) {
    std::vector<Case> cases;
    CaseBuilder("scattered", conformance::Suite::kSmoke, {{1, 1024}, {40, 1024}})
        .heads(4, num_kv_heads)
        .kv(DType::kI8, ScaleGranularity::kPerTokenHead)
        .block_size(1)
        .cache(conformance::CacheStyle::kPlainRecord)
        .with([](Case& c) { c.shuffled = false; })
        .add_to(cases);
    const Problem problem = conformance::make_problem(cases.front());
    Arrangement arrangement = conformance::arrange(problem, conformance::options_of(problem));
    swap_blocks(lanes, (lanes - 1) / (num_kv_heads + 3), arrangement);
    const OutputData want = run(*reference, problem, arrangement);
    for (const std::string& level : cpu_isa_levels()) {
      expect_near(want, run(*make_level(level, 2), problem, arrangement), 0.03, level);
    }
  }
}

// One key: its values come out as they are stored, whatever a level makes of them on the way.
TEST(CpuBackend, EveryCodeOfEightBits) {
  for (const auto cache :
       {conformance::CacheStyle::kPreferred, conformance::CacheStyle::kSeparate}) {
    for (const DType dtype : {DType::kI8, DType::kF8E4M3, DType::kF8E5M2}) {
      std::vector<Case> cases;
      CaseBuilder("codes", conformance::Suite::kSmoke, {{1, 1}})
          .heads(4, 1)
          .dims(64, 256)
          .kv(dtype, ScaleGranularity::kPerTensor)
          .cache(cache)
          .add_to(cases);
      Problem problem = conformance::make_problem(cases.front());
      std::vector<float> values;
      for (int code = 0; code < 256; ++code) {
        const auto byte = static_cast<std::uint8_t>(code);
        const float value = load_float(dtype, &byte, 0);
        values.push_back(std::isfinite(value) ? value : 0.0F);
      }
      const auto first = problem.v.stored.begin() + problem.slot(0, 0) * std::ssize(values);
      std::copy(values.begin(), values.end(), first);
      std::fill(problem.v.scales.begin(), problem.v.scales.end(), 1.0F);
      for (const std::string& level : cpu_isa_levels()) {
        const OutputData got =
            run(*make_level(level, 1), problem, conformance::options_of(problem));
        for (std::size_t i = 0; i < 4 * values.size(); ++i) {
          ASSERT_EQ(got.out[i], values[i % values.size()])
              << level << ", " << dtype_name(dtype) << ", code " << i % values.size();
        }
      }
    }
  }
}

// A sequence alone: the threads that read its heads store the new keys, in one go or in two.
TEST(CpuBackend, NewKeysAreStoredByThoseWhoReadThem) {
  for (const auto& [q_len, kv_len] : {std::pair{1, 900}, std::pair{5, 129}, std::pair{1, 1}}) {
    std::vector<Case> cases;
    CaseBuilder("threads/alone", conformance::Suite::kSmoke, {{q_len, kv_len}})
        .cache(conformance::CacheStyle::kPreferred)
        .add_to(cases);
    const Problem problem = conformance::make_problem(cases.front());
    ArrangeOptions alone = conformance::options_of(problem);
    alone.order = {0};
    for (const std::string& level : cpu_isa_levels()) {
      const OutputData want = run(*make_level(level, 1), problem, alone);
      for (const int num_threads : {1, 2, 3, 8}) {
        const auto backend = make_level(level, num_threads);
        for (const auto arrival : {conformance::Arrival::kFused, conformance::Arrival::kAppended}) {
          const auto found = conformance::compare_bits(problem, alone.order, want,
                                                       run(*backend, problem, alone, arrival));
          EXPECT_FALSE(found) << level << ", " << num_threads << " threads: " << *found;
        }
      }
    }
  }
}

// How often other threads of this process than the caller went to sleep.
std::int64_t num_sleeps_of_others() {
  rusage all{};
  rusage own{};
  getrusage(RUSAGE_SELF, &all);
  getrusage(RUSAGE_THREAD, &own);
  return all.ru_nvcsw - own.ru_nvcsw;
}

// The append and the attend of a step follow each other closely, but steps do not: nobody is woken
// for the next one.
TEST(CpuBackend, AShortStepAloneWakesNobody) {
  std::vector<Case> cases;
  CaseBuilder("threads/short", conformance::Suite::kSmoke, {{1, 300}}).add_to(cases);
  const Problem problem = conformance::make_problem(cases.front());
  ArrangeOptions alone = conformance::options_of(problem);
  alone.order = {0};
  const auto backend = make_level("", 2);
  const Arrangement arrangement = conformance::arrange(problem, alone);
  conformance::LoadOptions load;
  load.arrival = conformance::Arrival::kAppended;
  load.spec = conformance::spec_for(*backend, problem);
  conformance::LoadedBatch batch(*backend, problem, arrangement, load);
  batch.run();
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  pause();
  const std::int64_t before = num_sleeps_of_others();
  constexpr int kSteps = 50;
  for (int i = 0; i < kSteps; ++i) {
    batch.append();
    batch.attend();
    pause();
  }
  EXPECT_LT(num_sleeps_of_others() - before, kSteps / 5);
}

// Tasks one after the other, the last first: the hardest order for whoever waits for another.
class BackwardExecutor final : public Executor {
 public:
  int num_threads() const noexcept override { return 5; }
  void run(int num_tasks, void (*task)(void* context, int index) noexcept,
           void* context) noexcept override {
    for (int i = num_tasks - 1; i >= 0; --i) task(context, i);
    num_runs += 1;
    most_tasks = std::max(most_tasks, num_tasks);
  }
  int num_runs = 0;
  int most_tasks = 0;
};

class ThreadExecutor final : public Executor {
 public:
  int num_threads() const noexcept override { return 3; }
  void run(int num_tasks, void (*task)(void* context, int index) noexcept,
           void* context) noexcept override {
    std::vector<std::thread> threads;
    for (int i = 1; i < num_tasks; ++i) threads.emplace_back([=] { task(context, i); });
    task(context, 0);
    for (std::thread& thread : threads) thread.join();
  }
};

TEST(CpuBackend, RunsOnThreadsOfTheCaller) {
  const Problem problem = mixed_problem(conformance::CacheStyle::kPreferred);
  const ArrangeOptions as_is = conformance::options_of(problem);
  const OutputData want = run(*make_level("", 2), problem, as_is);

  BackwardExecutor backward;
  ThreadExecutor threads;
  for (Executor* executor : {static_cast<Executor*>(&backward), static_cast<Executor*>(&threads)}) {
    BackendOptions options;
    options.executor = executor;
    const auto backend = make_cpu_backend(options);
    const auto found =
        conformance::compare_bits(problem, as_is.order, want, run(*backend, problem, as_is));
    EXPECT_FALSE(found) << *found;
  }
  EXPECT_GT(backward.num_runs, 0);
  EXPECT_EQ(backward.most_tasks, 5);
}

TEST(CpuBackend, AnExecutorIsHeldToItsPromises) {
  struct Empty final : Executor {
    int num_threads() const noexcept override { return 0; }
    void run(int, void (*)(void*, int) noexcept, void*) noexcept override {}
  } empty;
  BackendOptions options;
  options.executor = &empty;
  EXPECT_THROW(make_cpu_backend(options), Error);
  BackwardExecutor backward;
  options.executor = &backward;
  options.cpus = {0};
  EXPECT_THROW(make_cpu_backend(options), Error);  // its threads are not ours to pin
}

// Threads with as much stack as an executor must give, which is less than most have.
class SmallStackExecutor final : public Executor {
 public:
  int num_threads() const noexcept override { return 2; }
  void run(int num_tasks, void (*task)(void* context, int index) noexcept,
           void* context) noexcept override {
    for (int i = 0; i < num_tasks; ++i) {
      Job job{task, context, i};
      pthread_attr_t attributes;
      pthread_attr_init(&attributes);
      pthread_attr_setstacksize(&attributes, 256 << 10);
      pthread_t thread{};
      const int error = pthread_create(
          &thread, &attributes,
          [](void* given) -> void* {
            const Job& mine = *static_cast<Job*>(given);
            mine.task(mine.context, mine.index);
            return nullptr;
          },
          &job);
      EXPECT_EQ(error, 0);
      if (error == 0) pthread_join(thread, nullptr);
      pthread_attr_destroy(&attributes);
    }
  }

 private:
  struct Job {
    void (*task)(void* context, int index) noexcept;
    void* context;
    int index;
  };
};

TEST(CpuBackend, TakesLittleStack) {
#if defined(QUIRE_EMULATED_CPU)
  GTEST_SKIP() << "emulated instructions take more stack";
#endif
  if (kHasAddressSanitizer || kHasThreadSanitizer) {
    GTEST_SKIP() << "sanitizers take more stack";
  }
  SmallStackExecutor executor;
  for (const int block_size : {1, 16, 128}) {
    for (const auto& [kv, scales, style] :
         {std::tuple{DType::kBF16, ScaleGranularity::kNone, conformance::CacheStyle::kPreferred},
          std::tuple{DType::kBF16, ScaleGranularity::kNone, conformance::CacheStyle::kSeparate},
          std::tuple{DType::kI8, ScaleGranularity::kPerTokenHead,
                     conformance::CacheStyle::kPreferred}}) {
      std::vector<Case> cases;
      CaseBuilder("threads/stack", conformance::Suite::kSmoke,
                  {{1, 3000}, {1, 3000}, {4, 900}, {130, 900}})
          .dims(128, 128)
          .block_size(block_size)
          .kv(kv, scales)
          .cache(style)
          .with([block_size](Case& c) { c.shared_blocks = 512 / block_size; })
          .add_to(cases);
      const Problem problem = conformance::make_problem(cases.front());
      const ArrangeOptions as_is = conformance::options_of(problem);
      for (const std::string& level : cpu_isa_levels()) {
        BackendOptions options;
        options.isa = level;
        options.executor = &executor;
        const auto found = conformance::compare_bits(
            problem, as_is.order, run(*make_level(level, 1), problem, as_is),
            run(*make_cpu_backend(options), problem, as_is));
        EXPECT_FALSE(found) << level << ": " << *found;
      }
    }
  }
}

int first_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) return cpu;
  }
  return -1;
}

TEST(CpuBackend, PinsItsThreadsAndNotTheCaller) {
  cpu_set_t before;
  cpu_set_t after;
  sched_getaffinity(0, sizeof(before), &before);
  BackendOptions options;
  options.num_threads = 3;
  options.cpus = {first_cpu()};
  const Problem problem = mixed_problem(conformance::CacheStyle::kPreferred);
  const ArrangeOptions as_is = conformance::options_of(problem);
  const auto found =
      conformance::compare_bits(problem, as_is.order, run(*make_level("", 1), problem, as_is),
                                run(*make_cpu_backend(options), problem, as_is));
  EXPECT_FALSE(found) << *found;
  sched_getaffinity(0, sizeof(after), &after);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));

  options.cpus = {CPU_SETSIZE + 1};
  try {
    make_cpu_backend(options);
    FAIL() << "a CPU that is not there was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(std::to_string(CPU_SETSIZE + 1)), std::string::npos);
  }
}

TEST(CpuBackend, AnImpossibleLevelSaysWhatIsMissing) {
  const CpuFeatures none;
  EXPECT_EQ(missing_for_cpu_level("scalar", none), "");
  EXPECT_EQ(missing_for_cpu_level("mmx", none), "does not exist");
#if defined(__x86_64__)
  EXPECT_EQ(missing_for_cpu_level("avx2", none), "needs avx2, f16c");
  EXPECT_EQ(missing_for_cpu_level("avx512", none), "needs avx512");
  CpuFeatures zen3;
  zen3.avx2 = zen3.f16c = true;
  EXPECT_EQ(missing_for_cpu_level("avx2", zen3), "");
  CpuFeatures ice_lake = zen3;
  ice_lake.avx512 = ice_lake.avx512_vbmi = ice_lake.avx512_vnni = true;
  EXPECT_EQ(missing_for_cpu_level("avx512_bf16", ice_lake), "needs avx512_bf16");
  EXPECT_EQ(missing_for_cpu_level("amx", ice_lake), "needs amx_bf16, avx512_bf16, avx512_fp16");
#endif
}

TEST(CpuBackend, TheForcedLevelIsUsedOrAnError) {
  ASSERT_EQ(setenv("QUIRE_CPU_ISA", "scalar", 1), 0);
  EXPECT_EQ(make_cpu_backend({})->info().isa, "scalar");
  ASSERT_EQ(setenv("QUIRE_CPU_ISA", "sse9", 1), 0);
  try {
    make_cpu_backend({});
    ADD_FAILURE() << "an unknown level was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string text = error.what();
    EXPECT_NE(text.find("QUIRE_CPU_ISA: level 'sse9' of the cpu backend does not exist"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("scalar"), std::string::npos) << text;
  }
  ASSERT_EQ(unsetenv("QUIRE_CPU_ISA"), 0);
}

TEST(CpuBackend, PinningIsSwitchedOffByTheEnvironment) {
  const Problem problem = mixed_problem(conformance::CacheStyle::kPreferred);
  const ArrangeOptions as_is = conformance::options_of(problem);
  const OutputData want = run(*make_level("", 1), problem, as_is);
  ASSERT_EQ(setenv("QUIRE_CPU_PIN", "0", 1), 0);
  const auto found = conformance::compare_bits(problem, as_is.order, want,
                                               run(*make_level("", 0), problem, as_is));
  EXPECT_FALSE(found) << *found;
  ASSERT_EQ(setenv("QUIRE_CPU_PIN", "maybe", 1), 0);
  try {
    make_level("", 2);
    ADD_FAILURE() << "an unknown value was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("'maybe'"), std::string::npos) << error.what();
  }
  ASSERT_EQ(unsetenv("QUIRE_CPU_PIN"), 0);
}

// Both finish, with the right bits, while the other one's threads spin and wait.
TEST(CpuBackend, TwoInOneProcess) {
  const Problem problem = mixed_problem(conformance::CacheStyle::kPreferred);
  const ArrangeOptions as_is = conformance::options_of(problem);
  const OutputData want = run(*make_level("", 1), problem, as_is);
  std::atomic<int> num_equal{0};
  const auto work = [&] {
    const auto backend = make_level("", 4);
    for (int round = 0; round < 5; ++round) {
      const OutputData got = run(*backend, problem, as_is);
      if (!conformance::compare_bits(problem, as_is.order, want, got)) ++num_equal;
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(num_equal, 10);
}

// One backend, two callers: calls take turns.
TEST(CpuBackend, TwoCallersOfOneBackend) {
  const Problem problem = mixed_problem(conformance::CacheStyle::kPreferred);
  const ArrangeOptions as_is = conformance::options_of(problem);
  const auto backend = make_level("", 3);
  const OutputData want = run(*backend, problem, as_is);
  std::atomic<int> num_equal{0};
  const auto work = [&] {
    for (int round = 0; round < 3; ++round) {
      const OutputData got = run(*backend, problem, as_is);
      if (!conformance::compare_bits(problem, as_is.order, want, got)) ++num_equal;
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(num_equal, 6);
}

}  // namespace
}  // namespace quire
