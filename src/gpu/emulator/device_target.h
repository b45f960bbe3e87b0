// SPDX-License-Identifier: Apache-2.0
// device_api.h on the emulator. A team is 32 lanes of a warp of 32 or 64.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "base/number_formats.h"
#include "gpu/emulator/matrix.h"
#include "gpu/emulator/simt.h"

#define QUIRE_DEVICE inline
#define QUIRE_DEVICE_RARE inline
#define QUIRE_UNROLL
#define QUIRE_UNROLL_4
#define QUIRE_NO_UNROLL
#define QUIRE_LIKELY(condition) (condition)
#define QUIRE_UNLIKELY(condition) (condition)

namespace quire::gpu {

inline int thread_index() {
  return static_cast<int>(simt::thread_idx().x);
}
inline int num_threads() {
  return static_cast<int>(simt::block_dim().x);
}
inline int block_index() {
  return static_cast<int>(simt::block_idx().x);
}
inline int num_blocks() {
  return static_cast<int>(simt::grid_dim().x);
}
inline void let_next_grid_start() {}
inline void prefetch(const void* data) {
  (void)data;
}

// What lies between the ends lies in memory as they do.
inline void prefetch_bytes(const void* data, int bytes) {
  simt::check(reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && bytes % 16 == 0,
              "prefetch_bytes: not multiples of 16");
  const auto* at = static_cast<const volatile unsigned char*>(data);
  (void)at[0];
  (void)at[bytes - 1];
}

inline int recomputed(int x) {
  return x;
}

namespace emulated {
// The lanes of this thread's team, and the first of them.
inline int first_lane() {
  return simt::lane_id() / 32 * 32;
}
inline simt::LaneMask team_mask() {
  return simt::LaneMask{0xffffffff} << first_lane();
}
}  // namespace emulated

inline void sync_block(simt::Site site = simt::Site::here()) {
  simt::sync_threads(site);
}
inline void sync_team(simt::Site site = simt::Site::here()) {
  simt::sync_warp(emulated::team_mask(), site);
}
inline void fence() {
  simt::fence_device();
}

template <class T>
T shuffle(T value, int from, simt::Site site = simt::Site::here()) {
  return simt::shuffle(value, emulated::first_lane() + from % 32, emulated::team_mask(), site);
}
template <class T>
T shuffle_xor(T value, int mask, simt::Site site = simt::Site::here()) {
  return simt::shuffle_xor(value, mask, emulated::team_mask(), site);
}
inline bool any(bool condition, simt::Site site = simt::Site::here()) {
  return simt::any(condition, emulated::team_mask(), site);
}

inline int atomic_add(int* at, int value, simt::Site site = simt::Site::here()) {
  return simt::atomic_add(at, value, simt::Order::kRelaxed, site);
}
inline int atomic_add_ordered(int* at, int value, simt::Site site = simt::Site::here()) {
  return simt::atomic_add(at, value, simt::Order::kAcquireRelease, site);
}
inline std::uint64_t atomic_min(std::uint64_t* at, std::uint64_t value,
                                simt::Site site = simt::Site::here()) {
  return simt::atomic_min(at, value, simt::Order::kRelaxed, site);
}

inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline float inverse_fast(float x) {
  return std::nextafter(1.0F / x, 0.0F);  // as far off as it may be
}
inline float exp2_exact(float x) {
  return std::exp2(x);
}
inline float tanh_exact(float x) {
  return std::tanh(x);
}
inline double tanh_exact(double x) {
  return std::tanh(x);
}
inline float exp_exact(float x) {
  return std::exp(x);
}
inline float log_exact(float x) {
  return std::log(x);
}
inline float max_of(float a, float b) {
  return a > b || b != b ? a : b;  // std::fmax lets a signalling NaN win
}

inline std::int32_t load_shared_by_blocks(const std::int32_t* at) {
  return *at;
}
inline float load_shared_by_blocks(const float* at) {
  return *at;
}
struct alignas(16) Float4 {
  float x, y, z, w;
};

inline unsigned char* shared_memory() {
  return static_cast<unsigned char*>(simt::dynamic_shared());
}

inline void async_copy16(void* shared, const void* source, bool valid,
                         simt::Site site = simt::Site::here()) {
  simt::copy_async(shared, source, 16, valid ? 16 : 0, site);
}
struct CachePolicy {};
inline CachePolicy cache_policy(bool /*goes_first*/) {
  return {};
}
inline void async_copy16(void* shared, const void* source, bool valid, CachePolicy,
                         simt::Site site = simt::Site::here()) {
  async_copy16(shared, source, valid, site);
}
inline void async_copy4(void* shared, const void* source, bool valid,
                        simt::Site site = simt::Site::here()) {
  simt::copy_async(shared, source, 4, valid ? 4 : 0, site);
}
inline void async_commit() {
  simt::copy_async_commit();
}
template <int kPending>
void async_wait() {
  simt::copy_async_wait(kPending);
}

inline void load_matrices(std::uint32_t (&r)[4], const void* row,
                          simt::Site site = simt::Site::here()) {
  simt::load_matrix_x4(r, row, site);
}
inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row,
                                     simt::Site site = simt::Site::here()) {
  simt::load_matrix_x4_transposed(r, row, site);
}
inline std::uint32_t transpose_matrix(std::uint32_t two, simt::Site site = simt::Site::here()) {
  return simt::transpose_matrix(two, site);
}
inline float fused(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1, BFloat16, simt::Site site = simt::Site::here()) {
  simt::mma_m16n8k16_bf16(c, a, b0, b1, site);
}
inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1, Float16, simt::Site site = simt::Site::here()) {
  simt::mma_m16n8k16_f16(c, a, b0, b1, site);
}

template <class T>
std::uint32_t pack(float low, float high, T) {
  return from_float<T>(low).bits | static_cast<std::uint32_t>(from_float<T>(high).bits) << 16;
}

template <class T>
void unpack(std::uint32_t two, float& low, float& high, T) {
  low = to_float(T{static_cast<std::uint16_t>(two)});
  high = to_float(T{static_cast<std::uint16_t>(two >> 16)});
}

inline std::uint32_t max_halves(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t low = (a & 0xffffU) > (b & 0xffffU) ? a & 0xffffU : b & 0xffffU;
  const std::uint32_t high = a >> 16 > b >> 16 ? a & 0xffff0000U : b & 0xffff0000U;
  return high | low;
}
inline std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  std::uint32_t selected = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t index = selector >> (4 * i) & 7;
    selected |= static_cast<std::uint32_t>(both >> (8 * index) & 0xff) << (8 * i);
  }
  return selected;
}

template <class T>
std::uint32_t four_bytes(float a, float b, float c, float d, T) {
  std::uint32_t four = 0;
  for (const float x : {d, c, b, a}) {
    four = four << 8 | __builtin_bit_cast(std::uint8_t, from_float<T>(x));
  }
  return four;
}

template <class T>
std::uint32_t two_halves(std::uint32_t bytes, int half, T) {
  const auto at = [&](int i) {
    const auto byte = static_cast<std::uint8_t>(bytes >> (16 * half + 8 * i));
    return from_float<Float16>(to_float(__builtin_bit_cast(T, byte))).bits;
  };
  return at(0) | static_cast<std::uint32_t>(at(1)) << 16;
}

}  // namespace quire::gpu
