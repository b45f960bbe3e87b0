// SPDX-License-Identifier: Apache-2.0
// The arithmetic that a machine can do at most: multiply-adds on registers alone, one kind of
// instruction at a time, on every thread of a pool.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"

namespace quire::benchmark {

enum class PeakKind : std::uint8_t {
  kPortable,    // what every processor of this kind has: SSE2 multiplications and additions
  kFmaAvx2,     // f32
  kFmaAvx512,   // f32
  kBf16Avx512,  // vdpbf16ps
  kBf16Amx,     // tdpbf16ps
  kInt8Amx,     // tdpbssd
};
inline constexpr int kNumPeakKinds = 6;

// The key in JSON: "portable", "fma_avx2", "fma_avx512", "bf16_avx512", "bf16_amx", "int8_amx".
const char* peak_name(PeakKind kind) noexcept;

// What this processor has; asks the system for the use of AMX where that is one of them.
std::vector<PeakKind> available_peaks(const CpuFeatures& features);

// Operations per second (a multiply-add is two), the best of several parts of about `seconds`.
// REQUIRES: kind is one of available_peaks().
double measure_peak(PeakKind kind, ThreadPool& pool, double seconds);

}  // namespace quire::benchmark
