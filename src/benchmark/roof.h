// SPDX-License-Identifier: Apache-2.0
// How fast a case could be at best: the larger of bytes / read bandwidth and operations / peak.
// Pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "benchmark/bench_case.h"
#include "benchmark/peak_probe.h"
#include "conformance/problem.h"

namespace quire::benchmark {

// What a case asks of a machine.
struct Work {
  // Of the rate: K and V that queries see, once per sequence; of append the new K and V as they
  // come; of copies what is copied.
  std::int64_t bytes = 0;
  std::int64_t flops = 0;         // of QK and PV
  std::int64_t moved_bytes = 0;   // append and copy: read and written; otherwise 0
  std::int64_t unique_bytes = 0;  // as `bytes`, but what sequences share only once
};

Work work_of(const BenchCase& c, const conformance::Problem& outline);

// Blocks that a kCopy case copies.
std::int64_t num_copies(const conformance::Problem& outline) noexcept;

// Bytes of K of one block where tokens of all heads lie together: what one jump of a caller's
// layout reads at once.
std::int64_t piece_bytes(const AttentionSpec& spec) noexcept;

// The ceilings that apply to a case, in bytes and operations per second.
struct Rates {
  double read = 0;  // in order, or in pieces for a caller's layout
  double copy = 0;  // bytes copied
  double peak = 0;
};

enum class Bound : std::uint8_t { kRead, kPeak, kCopy };

struct Roof {
  Bound bound = Bound::kRead;
  double seconds = 0;
};

// Data of a hot case lie in caches, so that the read bandwidth bounds nothing there.
Roof roof_of(const Work& work, const Rates& rates, bool hot) noexcept;

// The peaks that a level may use: those of its own instructions and of lower levels. An unknown
// level (a vendor's backend) may use whatever the machine has. f32 and f16 queries are not computed
// by bf16 instructions.
std::vector<PeakKind> peaks_of_level(std::string_view isa, DType q_dtype,
                                     const std::vector<PeakKind>& available);

}  // namespace quire::benchmark
