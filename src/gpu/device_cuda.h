// SPDX-License-Identifier: Apache-2.0
// device_api.h for CUDA, sm_80 and up.
#pragma once

#include <cstdint>

#include "base/number_formats.h"

#define QUIRE_DEVICE __device__ __forceinline__
// What is rarely needed: kept out of the loops that call it.
#define QUIRE_DEVICE_RARE inline __device__ __noinline__
#define QUIRE_UNROLL _Pragma("unroll")
#define QUIRE_UNROLL_4 _Pragma("unroll 4")
#define QUIRE_NO_UNROLL _Pragma("unroll 1")
#define QUIRE_LIKELY(condition) __builtin_expect(condition, 1)
#define QUIRE_UNLIKELY(condition) __builtin_expect(condition, 0)

namespace quire::gpu {

QUIRE_DEVICE int thread_index() {
  return static_cast<int>(threadIdx.x);
}
QUIRE_DEVICE int num_threads() {
  return static_cast<int>(blockDim.x);
}
QUIRE_DEVICE int block_index() {
  return static_cast<int>(blockIdx.x);
}
QUIRE_DEVICE int num_blocks() {
  return static_cast<int>(gridDim.x);
}

// x, of which the compiler knows nothing: what follows from it is computed again where it is
// needed, not kept in registers around a loop.
QUIRE_DEVICE int recomputed(int x) {
  int y;
  asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Programmatic dependent launch, where the device has it: what earlier grids wrote may be read
// after the first, and after the second the blocks of the next grid may take what this one leaves
// free.
QUIRE_DEVICE void wait_for_last_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
QUIRE_DEVICE void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Brings a line of global memory nearer, if it is there by the time; never a value.
QUIRE_DEVICE void prefetch(const void* data) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(data));
}

// The same for all lines of `bytes` from there on; both are multiples of 16. All of them must lie
// in memory that is there.
QUIRE_DEVICE void prefetch_bytes(const void* data, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(data)),
               "r"(bytes));
#else
  (void)data;
  (void)bytes;
#endif
}

// All threads of the block, or of the team, come here before one goes on; memory included.
QUIRE_DEVICE void sync_block() {
  __syncthreads();
}
QUIRE_DEVICE void sync_team() {
  __syncwarp();
}
// What this thread wrote before is seen by whoever sees what it writes after. (__threadfence also
// orders all fences of the device among each other, which takes longer.)
QUIRE_DEVICE void fence() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

QUIRE_DEVICE int shuffle(int value, int from) {
  return __shfl_sync(0xffffffffU, value, from);
}
QUIRE_DEVICE float shuffle(float value, int from) {
  return __shfl_sync(0xffffffffU, value, from);
}
QUIRE_DEVICE float shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffU, value, mask);
}
QUIRE_DEVICE int shuffle_xor(int value, int mask) {
  return __shfl_xor_sync(0xffffffffU, value, mask);
}
QUIRE_DEVICE bool any(bool condition) {
  return __any_sync(0xffffffffU, condition) != 0;
}

QUIRE_DEVICE int atomic_add(int* at, int value) {
  return atomicAdd(at, value);
}
// The same, and what was written before it is seen by whoever adds to the same number later.
QUIRE_DEVICE int atomic_add_ordered(int* at, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(at), "r"(value)
               : "memory");
  return before;
}
QUIRE_DEVICE std::uint64_t atomic_min(std::uint64_t* at, std::uint64_t value) {
  return atomicMin(reinterpret_cast<unsigned long long*>(at), value);
}

// 2^x: 0 for -inf, full f32 range.
QUIRE_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x of a number far from the ends of f32, off by at most one unit in the last place.
QUIRE_DEVICE float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
QUIRE_DEVICE float exp2_exact(float x) {
  return exp2f(x);
}
QUIRE_DEVICE float tanh_exact(float x) {
  return tanhf(x);
}
QUIRE_DEVICE double tanh_exact(double x) {
  return tanh(x);
}
QUIRE_DEVICE float exp_exact(float x) {
  return expf(x);
}
QUIRE_DEVICE float log_exact(float x) {
  return logf(x);
}
// The larger; a NaN loses against a number.
QUIRE_DEVICE float max_of(float a, float b) {
  return fmaxf(a, b);
}

// Written by other blocks, of this launch or of the last one: not from the cache of this processor.
QUIRE_DEVICE std::int32_t load_shared_by_blocks(const std::int32_t* at) {
  return __ldcg(at);
}
QUIRE_DEVICE float load_shared_by_blocks(const float* at) {
  return __ldcg(at);
}
struct alignas(16) Float4 {
  float x, y, z, w;
};

// The dynamic shared memory of the block, 128-byte aligned.
QUIRE_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char quire_shared_memory[];
  return quire_shared_memory;
}

// 16 bytes from global to shared memory, both 16-byte aligned; zeros if not `valid`, and then
// `source` is not read. They are there after async_wait of their group, for this thread; a barrier
// makes them visible to others.
QUIRE_DEVICE void async_copy16(void* shared, const void* source, bool valid) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(source),
               "r"(bytes));
}
// The same for 4 bytes.
QUIRE_DEVICE void async_copy4(void* shared, const void* source, bool valid) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(source), "r"(bytes));
}

// What a copy says to the cache that all processors share: its line is the first to go, or nothing.
// (evict_normal is not nothing: decode of 8,192 keys was 7 % slower with it than without a policy.)
struct CachePolicy {
  std::uint64_t bits;
};
QUIRE_DEVICE CachePolicy cache_policy(bool goes_first) {
  std::uint64_t first;
  std::uint64_t unchanged;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(unchanged));
  return {goes_first ? first : unchanged};
}
QUIRE_DEVICE void async_copy16(void* shared, const void* source, bool valid, CachePolicy policy) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
      "l"(source), "r"(bytes), "l"(policy.bits));
}
QUIRE_DEVICE void async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All but the newest kPending groups of this thread have arrived.
template <int kPending>
QUIRE_DEVICE void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
// Register i of lane l gets row l / 4, columns 2 * (l % 4) and + 1 of matrix i, or the same of the
// transposed matrix.
QUIRE_DEVICE void load_matrices(std::uint32_t (&r)[4], const void* row) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at));
}
QUIRE_DEVICE void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at));
}

// An 8x8 matrix of 16-bit numbers, lane l holding row l / 4, columns 2 * (l % 4) and + 1: the same
// of the transposed matrix.
QUIRE_DEVICE std::uint32_t transpose_matrix(std::uint32_t two) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(two));
  return transposed;
}

// a * b + c, rounded once.
QUIRE_DEVICE float fused(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}

// C += A * B in f32.
QUIRE_DEVICE void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                               std::uint32_t b1, BFloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
QUIRE_DEVICE void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                               std::uint32_t b1, Float16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers rounded to nearest even into one register, the first in the lower half.
QUIRE_DEVICE std::uint32_t pack(float low, float high, BFloat16) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
QUIRE_DEVICE std::uint32_t pack(float low, float high, Float16) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The two numbers of a register, exactly.
QUIRE_DEVICE void unpack(std::uint32_t two, float& low, float& high, BFloat16) {
  low = __uint_as_float(two << 16);
  high = __uint_as_float(two & 0xffff0000U);
}
QUIRE_DEVICE void unpack(std::uint32_t two, float& low, float& high, Float16) {
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(two));
}

// The larger of either 16 bits of two words, as numbers without sign.
QUIRE_DEVICE std::uint32_t max_halves(std::uint32_t a, std::uint32_t b) {
  return __vmaxu2(a, b);
}

// Bytes of the eight of (low, high) that the digits of `selector` name.
QUIRE_DEVICE std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high,
                                        std::uint32_t selector) {
  return __byte_perm(low, high, selector);
}

// Four numbers as from_float rounds and saturates them, the first in the lowest byte.
template <class T>
QUIRE_DEVICE std::uint32_t four_rounded(float a, float b, float c, float d) {
  return from_float<T>(a).bits | static_cast<std::uint32_t>(from_float<T>(b).bits) << 8 |
         static_cast<std::uint32_t>(from_float<T>(c).bits) << 16 |
         static_cast<std::uint32_t>(from_float<T>(d).bits) << 24;
}
QUIRE_DEVICE std::uint32_t four_bytes(float a, float b, float c, float d, Float8E4M3) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t four;
  asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; "
      "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
#else
  return four_rounded<Float8E4M3>(a, b, c, d);
#endif
}
QUIRE_DEVICE std::uint32_t four_bytes(float a, float b, float c, float d, Float8E5M2) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t four;
  asm("{.reg .b16 l, h; cvt.rn.satfinite.e5m2x2.f32 l, %2, %1; "
      "cvt.rn.satfinite.e5m2x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
#else
  return four_rounded<Float8E5M2>(a, b, c, d);
#endif
}
QUIRE_DEVICE std::uint32_t four_bytes(float a, float b, float c, float d, std::int8_t) {
  // NaN converts to 0; what 32 bits saturate, 8 bits saturate as well.
  std::uint32_t four;
  asm("{.reg .s32 i, j, k, l; .reg .b32 h; cvt.rni.s32.f32 i, %1; cvt.rni.s32.f32 j, %2; "
      "cvt.rni.s32.f32 k, %3; cvt.rni.s32.f32 l, %4; cvt.pack.sat.s8.s32.b32 h, l, k, 0; "
      "cvt.pack.sat.s8.s32.b32 %0, j, i, h;}"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
}

// Bytes 2 * half and 2 * half + 1 of `bytes` as two f16.
QUIRE_DEVICE std::uint32_t two_halves(std::uint32_t bytes, int half, Float8E4M3) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t packed;
  if (half == 0) {
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low;}"
        : "=r"(packed)
        : "r"(bytes));
  } else {
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high;}"
        : "=r"(packed)
        : "r"(bytes));
  }
  return packed;
#else
  // The code 7 bits up is the f16 of 2^-8 of the value, subnormals included; only the code of NaN
  // must be made one.
  const std::uint32_t spread = __byte_perm(bytes, 0, half != 0 ? 0x3424 : 0x1404);
  const std::uint32_t code = (spread & 0x80008000U) | ((spread & 0x7f007f00U) >> 1);
  constexpr std::uint32_t k256 = 0x5c005c00U;
  std::uint32_t packed;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(packed) : "r"(code), "r"(k256));
  if ((spread & 0x7f00U) == 0x7f00U) packed |= 0x7e00U;
  if ((spread & 0x7f000000U) == 0x7f000000U) packed |= 0x7e000000U;
  return packed;
#endif
}
QUIRE_DEVICE std::uint32_t two_halves(std::uint32_t bytes, int half, Float8E5M2) {
  return __byte_perm(bytes, 0, half != 0 ? 0x3424 : 0x1404);  // the upper byte of the f16
}
QUIRE_DEVICE std::uint32_t two_halves(std::uint32_t bytes, int half, std::int8_t) {
  // 1024 + (x + 128) as an f16 has x + 128 as its lower byte.
  const std::uint32_t biased =
      __byte_perm(bytes ^ 0x80808080U, 0x64646464U, half != 0 ? 0x4342 : 0x4140);
  constexpr std::uint32_t k1152 = 0x64806480U;
  std::uint32_t x;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(biased), "r"(k1152));
  return x;
}

}  // namespace quire::gpu
