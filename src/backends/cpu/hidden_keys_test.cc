// SPDX-License-Identifier: Apache-2.0
// What a row does not see leaves no trace in it, not in one bit: neither what unused slots hold,
// nor keys that later queries alone see. At every level of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "conformance/arrangement.h"
#include "conformance/case_builder.h"
#include "conformance/loaded_batch.h"
#include "conformance/problem.h"

namespace quire {
namespace {

using conformance::CacheStyle;
using conformance::Case;
using conformance::Problem;

struct Form {
  DType kv;
  ScaleGranularity scales;
  int head_dim;
  int block_size;
  CacheStyle style;
  std::int64_t window_left = -1;  // chunks begin anywhere
  bool v_in_k = false;
};

std::vector<Form> all_forms() {
  std::vector<Form> forms;
  for (const CacheStyle style : {CacheStyle::kPreferred, CacheStyle::kSeparate}) {
    for (const int block_size : {16, 128}) {
      forms.push_back({DType::kBF16, ScaleGranularity::kNone, 64, block_size, style});
      forms.push_back({DType::kF8E4M3, ScaleGranularity::kPerTensor, 128, block_size, style});
      forms.push_back({DType::kI8, ScaleGranularity::kPerTokenHead, 64, block_size, style});
    }
    forms.push_back({DType::kF16, ScaleGranularity::kNone, 48, 32, style});
    forms.push_back({DType::kF32, ScaleGranularity::kNone, 40, 32, style});
    forms.push_back({DType::kBF16, ScaleGranularity::kNone, 64, 32, style, 75});
    forms.push_back({DType::kBF16, ScaleGranularity::kNone, 64, 32, style, -1, true});
  }
  return forms;
}

// What the hidden keys are: unused slots hold NaN or numbers; of the key that only the last query
// of each sequence sees, K takes all of its weight, or K or V are not finite.
enum class Hidden : std::uint8_t { kNan, kNumbers, kHeavy, kKeyNotFinite, kValueNotFinite };

void change_last_keys(Problem& problem, Hidden hidden) {
  const std::int64_t heads = problem.spec.num_kv_heads;
  for (std::int64_t s = 0; s < std::ssize(problem.sequences); ++s) {
    const conformance::ProblemSequence& sequence = problem.sequences[static_cast<std::size_t>(s)];
    const std::int64_t row = problem.slot(s, sequence.kv_len - 1) * heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      if (hidden == Hidden::kHeavy) {
        // As the first query of the last token, many times.
        const std::int64_t token = sequence.first_token + sequence.q_len - 1;
        const auto query =
            problem.q.begin() +
            (token * problem.spec.num_q_heads + h * problem.spec.head_group()) * problem.k.dim;
        const auto stored = problem.k.stored.begin() + (row + h) * problem.k.dim;
        std::transform(query, query + problem.k.dim, stored,
                       [](float x) { return x > 0 ? 32.0F : -32.0F; });
        problem.k.scales[static_cast<std::size_t>(row + h)] = 1.0F;
      } else {
        // int8 has neither.
        const bool is_key = hidden == Hidden::kKeyNotFinite || problem.spec.kv.v_in_k;
        conformance::ProblemKv& kv = is_key ? problem.k : problem.v;
        for (int d = 0; d < kv.dim; ++d) {
          using Limits = std::numeric_limits<float>;
          const bool nan = d % 3 != 0 || problem.spec.kv.dtype == DType::kI8;
          kv.stored[static_cast<std::size_t>((row + h) * kv.dim + d)] =
              nan ? Limits::quiet_NaN() : Limits::infinity();
        }
      }
    }
  }
}

// Bits of out of all but the last `num_last` queries of every sequence.
std::vector<std::uint32_t> bits_of(AttentionBackend& backend, const Problem& problem,
                                   std::int64_t num_last) {
  conformance::LoadOptions load;
  load.spec = conformance::spec_for(backend, problem);
  const conformance::Arrangement arrangement =
      conformance::arrange(problem, conformance::options_of(problem));
  conformance::LoadedBatch batch(backend, problem, arrangement, load);
  batch.run();
  const conformance::OutputData output = batch.output();
  const std::int64_t row = std::int64_t{problem.spec.num_q_heads} * problem.spec.value_dim;
  std::vector<std::uint32_t> bits;
  for (const conformance::ProblemSequence& sequence : problem.sequences) {
    const auto first = output.out_bits.begin() + sequence.first_token * row;
    bits.insert(bits.end(), first, first + (sequence.q_len - num_last) * row);
  }
  return bits;
}

Problem make_problem(const Form& form, int q_len, Hidden hidden) {
  std::vector<Case> cases;
  conformance::CaseBuilder("hidden", conformance::Suite::kSmoke, {{q_len, 140}, {q_len, 333}})
      .heads(4, 2)
      .dims(form.head_dim, form.head_dim)
      .block_size(form.block_size)
      .kv(form.kv, form.scales)
      .cache(form.style)
      .with([&](Case& c) {
        c.finite_garbage = hidden != Hidden::kNan;
        c.spec.mask.window_left = form.window_left;
        c.spec.kv.v_in_k = form.v_in_k;
        c.spec.out_dtype = DType::kF32;
      })
      .add_to(cases);
  Problem problem = conformance::make_problem(cases.front());
  // Small queries see all keys alike: weights of int8 take few digits, beside a heavy key more.
  for (float& x : problem.q) x *= 0x1p-5F;
  if (hidden != Hidden::kNan && hidden != Hidden::kNumbers) change_last_keys(problem, hidden);
  return problem;
}

std::int64_t num_different(const std::vector<std::uint32_t>& a,
                           const std::vector<std::uint32_t>& b) {
  std::int64_t count = a.size() == b.size() ? 0 : std::ssize(a);
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

TEST(HiddenKeys, LeaveNoTrace) {
  for (const std::string& level : cpu_isa_levels()) {
    BackendOptions options;
    options.isa = level;
    options.num_threads = 1;
    const auto backend = make_cpu_backend(options);
    for (const Form& form : all_forms()) {
      for (const int q_len : {1, 4, 40, 130}) {
        const auto found = [&](Hidden hidden, std::int64_t num_last) {
          return bits_of(*backend, make_problem(form, q_len, hidden), num_last);
        };
        const std::string what = level + ", " + std::string(dtype_name(form.kv)) + ", block " +
                                 std::to_string(form.block_size) + ", layout " +
                                 std::to_string(static_cast<int>(form.style)) + ", window " +
                                 std::to_string(form.window_left) +
                                 (form.v_in_k ? ", V in K" : "") + ", q_len " +
                                 std::to_string(q_len);
        EXPECT_EQ(num_different(found(Hidden::kNan, 0), found(Hidden::kNumbers, 0)), 0)
            << what << ": unused slots";
        if (q_len == 1) continue;
        const std::vector<std::uint32_t> want = found(Hidden::kNumbers, 1);
        EXPECT_EQ(num_different(want, found(Hidden::kHeavy, 1)), 0)
            << what << ": K of the last key";
        EXPECT_EQ(num_different(want, found(Hidden::kKeyNotFinite, 1)), 0)
            << what << ": K of the last key, not finite";
        EXPECT_EQ(num_different(want, found(Hidden::kValueNotFinite, 1)), 0)
            << what << ": V of the last key";
      }
    }
  }
}

}  // namespace
}  // namespace quire
