// SPDX-License-Identifier: Apache-2.0
// The loops are written in assembly because only there twelve accumulators surely stay twelve
// registers: enough for two instructions a cycle at a latency of six.
#include "benchmark/peak_probe.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>

namespace quire::benchmark {
namespace {

// Operations done by one call: a few tens of microseconds.
using Kernel = std::int64_t (*)() noexcept;

#if defined(__x86_64__)

constexpr std::int64_t kLoops = 2000;
constexpr int kAccumulators = 12;

// One line for each accumulator 0..11: before, register number, after.
#define QUIRE_TWELVE(before, after)                                                           \
  before "0" after before "1" after before "2" after before "3" after before "4" after before \
         "5" after before "6" after before "7" after before "8" after before "9" after before \
         "10" after before "11" after
#define QUIRE_VECTOR_REGISTERS                                                             \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

constexpr float kOne = 1.0F;
constexpr std::uint32_t kTwoBf16Ones = 0x3f803f80U;

std::int64_t run_sse2() noexcept {
  std::int64_t n = kLoops;
  __asm__ volatile(
      "movss %1, %%xmm14\n\tshufps $0, %%xmm14, %%xmm14\n\t" QUIRE_TWELVE("movaps %%xmm14, %%xmm",
                                                                           "\n\t")
      "1:\n\t"
      "mulps %%xmm14, %%xmm0\n\taddps %%xmm14, %%xmm1\n\tmulps %%xmm14, %%xmm2\n\t"
      "addps %%xmm14, %%xmm3\n\tmulps %%xmm14, %%xmm4\n\taddps %%xmm14, %%xmm5\n\t"
      "mulps %%xmm14, %%xmm6\n\taddps %%xmm14, %%xmm7\n\tmulps %%xmm14, %%xmm8\n\t"
      "addps %%xmm14, %%xmm9\n\tmulps %%xmm14, %%xmm10\n\taddps %%xmm14, %%xmm11\n\t"
      "dec %0\n\tjnz 1b"
      : "+r"(n)
      : "m"(kOne)
      : "cc", QUIRE_VECTOR_REGISTERS);
  return kLoops * kAccumulators * 4;
}

std::int64_t run_fma_avx2() noexcept {
  std::int64_t n = kLoops;
  __asm__ volatile("vbroadcastss %1, %%ymm14\n\t" QUIRE_TWELVE(
                       "vmovaps %%ymm14, %%ymm",
                       "\n\t") "1:\n\t" QUIRE_TWELVE("vfmadd231ps %%ymm14, %%ymm14, %%ymm",
                                                     "\n\t") "dec %0\n\tjnz 1b\n\tvzeroupper"
                   : "+r"(n)
                   : "m"(kOne)
                   : "cc", QUIRE_VECTOR_REGISTERS);
  return kLoops * kAccumulators * 8 * 2;
}

std::int64_t run_fma_avx512() noexcept {
  std::int64_t n = kLoops;
  __asm__ volatile("vbroadcastss %1, %%zmm14\n\t" QUIRE_TWELVE(
                       "vmovaps %%zmm14, %%zmm",
                       "\n\t") "1:\n\t" QUIRE_TWELVE("vfmadd231ps %%zmm14, %%zmm14, %%zmm",
                                                     "\n\t") "dec %0\n\tjnz 1b\n\tvzeroupper"
                   : "+r"(n)
                   : "m"(kOne)
                   : "cc", QUIRE_VECTOR_REGISTERS);
  return kLoops * kAccumulators * 16 * 2;
}

std::int64_t run_bf16_avx512() noexcept {
  std::int64_t n = kLoops;
  __asm__ volatile("vpbroadcastd %1, %%zmm14\n\t" QUIRE_TWELVE(
                       "vmovaps %%zmm14, %%zmm",
                       "\n\t") "1:\n\t" QUIRE_TWELVE("vdpbf16ps %%zmm14, %%zmm14, %%zmm",
                                                     "\n\t") "dec %0\n\tjnz 1b\n\tvzeroupper"
                   : "+r"(n)
                   : "m"(kTwoBf16Ones)
                   : "cc", QUIRE_VECTOR_REGISTERS);
  return kLoops * kAccumulators * 32 * 2;
}

#undef QUIRE_TWELVE
#undef QUIRE_VECTOR_REGISTERS

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::array<std::uint8_t, 14> reserved{};
  std::array<std::uint16_t, 16> row_bytes{};
  std::array<std::uint8_t, 16> rows{};
};
static_assert(sizeof(TileConfig) == 64);

TileConfig full_tiles() noexcept {
  TileConfig config;
  for (std::size_t i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  return config;
}

constexpr std::int64_t kTileLoops = 1000;
constexpr std::int64_t kTileRows = 16;

// Four products of 2 x 2 tiles: accumulators 0..3, operands 4..7, all ones.
std::int64_t run_bf16_amx() noexcept {
  const TileConfig config = full_tiles();
  alignas(64) std::array<std::uint32_t, 256> ones;
  ones.fill(kTwoBf16Ones);
  std::int64_t n = kTileLoops;
  const std::int64_t stride = 64;
  __asm__ volatile(
      "ldtilecfg %1\n\t"
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
      "tileloadd (%2,%3,1), %%tmm4\n\ttileloadd (%2,%3,1), %%tmm5\n\t"
      "tileloadd (%2,%3,1), %%tmm6\n\ttileloadd (%2,%3,1), %%tmm7\n\t"
      "1:\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\ttdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\ttdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      "dec %0\n\tjnz 1b\n\ttilerelease"
      : "+r"(n)
      : "m"(config), "r"(ones.data()), "r"(stride)
      : "cc", "memory");
  return kTileLoops * 4 * kTileRows * kTileRows * 32 * 2;
}

std::int64_t run_int8_amx() noexcept {
  const TileConfig config = full_tiles();
  alignas(64) std::array<std::uint32_t, 256> ones;
  ones.fill(0x01010101U);
  std::int64_t n = kTileLoops;
  const std::int64_t stride = 64;
  __asm__ volatile(
      "ldtilecfg %1\n\t"
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
      "tileloadd (%2,%3,1), %%tmm4\n\ttileloadd (%2,%3,1), %%tmm5\n\t"
      "tileloadd (%2,%3,1), %%tmm6\n\ttileloadd (%2,%3,1), %%tmm7\n\t"
      "1:\n\t"
      "tdpbssd %%tmm6, %%tmm4, %%tmm0\n\ttdpbssd %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbssd %%tmm6, %%tmm5, %%tmm2\n\ttdpbssd %%tmm7, %%tmm5, %%tmm3\n\t"
      "dec %0\n\tjnz 1b\n\ttilerelease"
      : "+r"(n)
      : "m"(config), "r"(ones.data()), "r"(stride)
      : "cc", "memory");
  return kTileLoops * 4 * kTileRows * kTileRows * 64 * 2;
}

// Tiles are given to a process only if it asks, once.
bool ask_for_amx() noexcept {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Kernel kernel_of(PeakKind kind) noexcept {
  switch (kind) {
    case PeakKind::kPortable:
      return run_sse2;
    case PeakKind::kFmaAvx2:
      return run_fma_avx2;
    case PeakKind::kFmaAvx512:
      return run_fma_avx512;
    case PeakKind::kBf16Avx512:
      return run_bf16_avx512;
    case PeakKind::kBf16Amx:
      return run_bf16_amx;
    case PeakKind::kInt8Amx:
      return run_int8_amx;
  }
  return run_sse2;
}

#else

bool ask_for_amx() noexcept {
  return false;
}

// Independent chains that any compiler keeps in vector registers.
std::int64_t run_portable() noexcept {
  constexpr int kChains = 64;
  constexpr std::int64_t kLoops = 4000;
  std::array<float, kChains> chains{};
  volatile float one = 1.0F;
  const float factor = one;
  for (std::int64_t n = 0; n < kLoops; ++n) {
    for (float& x : chains) x = x * factor + factor;
  }
  for (const float x : chains) one = x;
  return kLoops * kChains * 2;
}

Kernel kernel_of(PeakKind) noexcept {
  return run_portable;
}

#endif

}  // namespace

const char* peak_name(PeakKind kind) noexcept {
  switch (kind) {
    case PeakKind::kPortable:
      return "portable";
    case PeakKind::kFmaAvx2:
      return "fma_avx2";
    case PeakKind::kFmaAvx512:
      return "fma_avx512";
    case PeakKind::kBf16Avx512:
      return "bf16_avx512";
    case PeakKind::kBf16Amx:
      return "bf16_amx";
    case PeakKind::kInt8Amx:
      return "int8_amx";
  }
  return "?";
}

std::vector<PeakKind> available_peaks(const CpuFeatures& features) {
  std::vector<PeakKind> kinds{PeakKind::kPortable};
  if (features.avx2) kinds.push_back(PeakKind::kFmaAvx2);
  if (features.avx512) kinds.push_back(PeakKind::kFmaAvx512);
  if (features.avx512_bf16) kinds.push_back(PeakKind::kBf16Avx512);
  if ((features.amx_bf16 || features.amx_int8) && ask_for_amx()) {
    if (features.amx_bf16) kinds.push_back(PeakKind::kBf16Amx);
    if (features.amx_int8) kinds.push_back(PeakKind::kInt8Amx);
  }
  return kinds;
}

double measure_peak(PeakKind kind, ThreadPool& pool, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Kernel kernel = kernel_of(kind);
  const auto run = [&](std::int64_t num_items) {
    const Clock::time_point start = Clock::now();
    pool.run(num_items, [&](std::int64_t, int) noexcept { static_cast<void>(kernel()); });
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const std::int64_t flops_per_item = kernel();
  // The first run wakes the threads and tells how long an item takes.
  const std::int64_t few = 8 * pool.num_threads();
  const double item_seconds = run(few) / static_cast<double>(few);
  // Registers alone know no slow phases; whoever else wants a core for a moment does not lower what
  // the cores can do. So the best of several parts counts.
  constexpr int kParts = 4;
  const auto wanted = static_cast<std::int64_t>(seconds / kParts / item_seconds);
  const std::int64_t num_items = wanted > few ? wanted : few;
  double best = 0;
  for (int part = 0; part < kParts; ++part) {
    const double rate = static_cast<double>(num_items * flops_per_item) / run(num_items);
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace quire::benchmark
