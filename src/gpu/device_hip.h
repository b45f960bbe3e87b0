// SPDX-License-Identifier: Apache-2.0
// device_api.h for AMD GPUs: matrix cores of gfx90a, in waves of 64, and of gfx11, in waves of 32.
// Clang alone compiles it, without the vendor's headers and device library; so far nothing launches
// it, and tests/device/ proves that every kernel compiles.
//
// A team is a wave. In waves of 64 the upper half takes no part (takes_part) and a block is
// launched with twice its threads: matrix instructions write the registers of lanes that are
// switched off too, so a second team in the wave, waiting at the end of a loop that the first is
// still in, could lose what it had computed.
#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "gpu/tanh_double.h"

#define QUIRE_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define QUIRE_DEVICE_RARE __attribute__((device)) inline __attribute__((noinline))
#if !defined(QUIRE_UNROLL)  // tests compile most kernels without
#define QUIRE_UNROLL _Pragma("unroll")
#endif
#define QUIRE_UNROLL_4 _Pragma("unroll 4")
#define QUIRE_NO_UNROLL _Pragma("unroll 1")
#define QUIRE_LIKELY(condition) __builtin_expect(condition, 1)
#define QUIRE_UNLIKELY(condition) __builtin_expect(condition, 0)

namespace quire::gpu {

#if defined(__GFX11__)
inline constexpr int kWave = 32;
#else
inline constexpr int kWave = 64;
#endif

// First in every kernel: threads for which this is false return.
QUIRE_DEVICE bool takes_part() {
  return __builtin_amdgcn_workitem_id_x() % kWave < 32;
}
QUIRE_DEVICE int thread_index() {
  const auto hardware = static_cast<int>(__builtin_amdgcn_workitem_id_x());
  return hardware / kWave * 32 + hardware % 32;
}
QUIRE_DEVICE int num_threads() {
  return static_cast<int>(__builtin_amdgcn_workgroup_size_x()) / (kWave / 32);
}
QUIRE_DEVICE int block_index() {
  return static_cast<int>(__builtin_amdgcn_workgroup_id_x());
}
QUIRE_DEVICE int num_blocks() {
  return static_cast<int>(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x());
}
QUIRE_DEVICE void let_next_grid_start() {}
QUIRE_DEVICE void prefetch(const void* data) {
  (void)data;
}
QUIRE_DEVICE void prefetch_bytes(const void* data, int bytes) {
  (void)data;
  (void)bytes;
}

QUIRE_DEVICE int recomputed(int x) {
  asm volatile("" : "+v"(x));
  return x;
}

QUIRE_DEVICE void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// A wave's accesses to memory are in order; only the compiler must keep them so.
QUIRE_DEVICE void sync_team() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
QUIRE_DEVICE void fence() {
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
}

QUIRE_DEVICE int shuffle(int value, int from) {
  return __builtin_amdgcn_ds_bpermute(4 * (from & 31), value);
}
QUIRE_DEVICE float shuffle(float value, int from) {
  return __builtin_bit_cast(float, shuffle(__builtin_bit_cast(int, value), from));
}
QUIRE_DEVICE int shuffle_xor(int value, int mask) {
  return shuffle(value, thread_index() ^ mask);
}
QUIRE_DEVICE float shuffle_xor(float value, int mask) {
  return shuffle(value, thread_index() ^ mask);
}
QUIRE_DEVICE bool any(bool condition) {
#if defined(__GFX11__)
  return __builtin_amdgcn_ballot_w32(condition) != 0;
#else
  return __builtin_amdgcn_ballot_w64(condition) != 0;
#endif
}

QUIRE_DEVICE int atomic_add(int* at, int value) {
  return __scoped_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
// The same, and what was written before it is seen by whoever adds to the same number later.
QUIRE_DEVICE int atomic_add_ordered(int* at, int value) {
  return __scoped_atomic_fetch_add(at, value, __ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE);
}
QUIRE_DEVICE std::uint64_t atomic_min(std::uint64_t* at, std::uint64_t value) {
  return __scoped_atomic_fetch_min(at, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

QUIRE_DEVICE float exp2_fast(float x) {
  return __builtin_amdgcn_exp2f(x);
}
// 1 / x of a number far from the ends of f32, off by at most one unit in the last place.
QUIRE_DEVICE float inverse_fast(float x) {
  return 1.0F / x;
}
QUIRE_DEVICE float exp2_exact(float x) {
  return __builtin_exp2f(x);
}
QUIRE_DEVICE double tanh_exact(double x) {
  return tanh_double(x);
}
QUIRE_DEVICE float tanh_exact(float x) {
  return static_cast<float>(tanh_double(static_cast<double>(x)));
}
QUIRE_DEVICE float exp_exact(float x) {
  return __builtin_expf(x);
}
QUIRE_DEVICE float log_exact(float x) {
  return __builtin_logf(x);
}
QUIRE_DEVICE float max_of(float a, float b) {
  return __builtin_fmaxf(a, b);
}
QUIRE_DEVICE float fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

QUIRE_DEVICE std::int32_t load_shared_by_blocks(const std::int32_t* at) {
  return __scoped_atomic_load_n(at, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
QUIRE_DEVICE float load_shared_by_blocks(const float* at) {
  return __builtin_bit_cast(float,
                            load_shared_by_blocks(reinterpret_cast<const std::int32_t*>(at)));
}
struct alignas(16) Float4 {
  float x, y, z, w;
};

extern __attribute__((shared)) __attribute__((aligned(128))) unsigned char quire_shared_memory[];
QUIRE_DEVICE unsigned char* shared_memory() {
  return quire_shared_memory;
}

// Through registers: they are there at once, and there are no groups to wait for.
QUIRE_DEVICE void async_copy16(void* shared, const void* source, bool valid) {
  struct alignas(16) Piece {
    std::uint32_t x[4];
  };
  Piece piece{};
  if (valid) piece = *static_cast<const Piece*>(source);
  *static_cast<Piece*>(shared) = piece;
}
struct CachePolicy {};
QUIRE_DEVICE CachePolicy cache_policy(bool /*goes_first*/) {
  return {};
}
QUIRE_DEVICE void async_copy16(void* shared, const void* source, bool valid, CachePolicy) {
  async_copy16(shared, source, valid);
}
QUIRE_DEVICE void async_copy4(void* shared, const void* source, bool valid) {
  std::uint32_t piece = 0;
  if (valid) piece = *static_cast<const std::uint32_t*>(source);
  *static_cast<std::uint32_t*>(shared) = piece;
}
QUIRE_DEVICE void async_commit() {}
template <int kPending>
QUIRE_DEVICE void async_wait() {}

}  // namespace quire::gpu

#include "gpu/device_hip_matrix.h"
