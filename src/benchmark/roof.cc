// SPDX-License-Identifier: Apache-2.0
#include "benchmark/roof.h"

#include <algorithm>

#include "conformance/cost.h"

namespace quire::benchmark {
namespace {

using conformance::Cost;
using conformance::Problem;

// Bytes of K and V of one token, all heads, in a format.
std::int64_t token_bytes(const AttentionSpec& spec, DType dtype) noexcept {
  const std::int64_t dims = spec.head_dim + (spec.kv.v_in_k ? 0 : spec.value_dim);
  return spec.num_kv_heads * dims * dtype_bytes(dtype);
}

std::int64_t stored_token_bytes(const AttentionSpec& spec) noexcept {
  const bool has_scales = spec.kv.scales == ScaleGranularity::kPerTokenHead;
  const std::int64_t scales = has_scales ? 4 * spec.num_kv_heads * (spec.kv.v_in_k ? 1 : 2) : 0;
  return token_bytes(spec, spec.kv.dtype) + scales;
}

Work attend_work(const Problem& outline) {
  const Cost cost = conformance::cost_of(outline);
  Work work;
  work.bytes = cost.kv_bytes;
  work.flops = cost.flops;
  const AttentionSpec& spec = outline.spec;
  // Whole leading blocks are shared, by all sequences that are long enough.
  std::int64_t longest = 0;
  std::int64_t total = 0;
  for (const conformance::ProblemSequence& sequence : outline.sequences) {
    const std::int64_t old_blocks = (sequence.kv_len - sequence.q_len) / spec.kv.block_size;
    const std::int64_t shared = std::min(outline.c.shared_blocks, old_blocks);
    longest = std::max(longest, shared);
    total += shared;
  }
  const std::int64_t repeated = (total - longest) * spec.kv.block_size;
  work.unique_bytes = work.bytes - repeated * stored_token_bytes(spec);
  return work;
}

}  // namespace

std::int64_t num_copies(const Problem& outline) noexcept {
  return std::max<std::int64_t>(1, outline.num_blocks / 4);
}

std::int64_t piece_bytes(const AttentionSpec& spec) noexcept {
  return std::int64_t{spec.kv.block_size} * spec.num_kv_heads * spec.head_dim *
         dtype_bytes(spec.kv.dtype);
}

Work work_of(const BenchCase& c, const Problem& outline) {
  const AttentionSpec& spec = outline.spec;
  Work work;
  switch (c.operation) {
    case Operation::kAttend:
    case Operation::kStep:
      return attend_work(outline);
    case Operation::kAppend: {
      const std::int64_t num_new = std::ssize(outline.new_tokens);
      work.bytes = num_new * token_bytes(spec, outline.c.new_kv_dtype);
      work.moved_bytes = work.bytes + num_new * stored_token_bytes(spec);
      break;
    }
    case Operation::kCopy:
    case Operation::kSwapOut:
    case Operation::kSwapIn:
      work.bytes = num_copies(outline) * spec.kv.block_size * stored_token_bytes(spec);
      work.moved_bytes = 2 * work.bytes;
      break;
  }
  work.unique_bytes = work.bytes;
  return work;
}

Roof roof_of(const Work& work, const Rates& rates, bool hot) noexcept {
  const auto over = [](std::int64_t amount, double rate) {
    return rate > 0 ? static_cast<double>(amount) / rate : 0.0;
  };
  if (work.moved_bytes > 0) {
    // Copying a byte moves two.
    return {.bound = Bound::kCopy, .seconds = over(work.moved_bytes, 2 * rates.copy)};
  }
  const double read_seconds = hot ? 0.0 : over(work.bytes, rates.read);
  const double peak_seconds = over(work.flops, rates.peak);
  if (peak_seconds > read_seconds) return {.bound = Bound::kPeak, .seconds = peak_seconds};
  return {.bound = Bound::kRead, .seconds = read_seconds};
}

std::vector<PeakKind> peaks_of_level(std::string_view isa, DType q_dtype,
                                     const std::vector<PeakKind>& available) {
  struct Level {
    std::string_view name;
    PeakKind highest;
  };
  constexpr Level kLevels[] = {{"scalar", PeakKind::kPortable},
                               {"avx2", PeakKind::kFmaAvx2},
                               {"avx512", PeakKind::kFmaAvx512},
                               {"avx512_bf16", PeakKind::kBf16Avx512},
                               {"amx", PeakKind::kBf16Amx}};
  PeakKind highest = PeakKind::kBf16Amx;
  for (const Level& level : kLevels) {
    if (level.name == isa) highest = level.highest;
  }
  if (q_dtype != DType::kBF16) highest = std::min(highest, PeakKind::kFmaAvx512);
  std::vector<PeakKind> kinds;
  for (const PeakKind kind : available) {
    if (kind <= highest) kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace quire::benchmark
