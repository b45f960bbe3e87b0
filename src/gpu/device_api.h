// SPDX-License-Identifier: Apache-2.0
// What a kernel may use of a device, in one vocabulary for CUDA, for AMD and for the host emulator
// (gpu/emulator/). A kernel is a template or inline function over these names;
// kernels/kernel_table.h lists what is launched.
//
// A team is 32 lanes: a warp on NVIDIA, a wave on AMD. Everything a team does together (shuffles,
// votes, matrix products) is of the team alone, so that no kernel knows the width of a wave: the
// emulator also runs two teams in a warp of 64.
//
// Matrix fragments are those of mma.m16n8k16: lane l of the team holds
//   A [16 rows, 16 k]: a[0] (l/4, 2*(l%4)), a[1] (l/4+8, ..), a[2] (l/4, ..+8), a[3] (l/4+8, ..+8)
//   B [16 k, 8 cols]:  b[0] (2*(l%4), l/4), b[1] (2*(l%4)+8, l/4)
//   C [16 rows, 8 cols]: c[0..1] (l/4, 2*(l%4)), c[2..3] (l/4+8, 2*(l%4))
// where a register of A or B holds two 16-bit numbers with neighbouring k, the lower first.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/number_formats.h"

#if defined(QUIRE_GPU_EMULATED)
#include "gpu/emulator/device_target.h"
#elif defined(__HIP__)
#include "gpu/device_hip.h"
#elif defined(__CUDACC__)
#include "gpu/device_cuda.h"
#else
#error "device_api.h is for kernels: compile for CUDA, HIP or the emulator"
#endif

namespace quire::gpu {

inline constexpr int kTeam = 32;

struct alignas(16) Sixteen {
  std::uint32_t x[4];
};

// Lane of the team, and team of the thread block.
QUIRE_DEVICE int lane() {
  return thread_index() % kTeam;
}
QUIRE_DEVICE int team() {
  return thread_index() / kTeam;
}

QUIRE_DEVICE float negative_infinity() {
  return __builtin_bit_cast(float, 0xff800000U);
}

QUIRE_DEVICE std::int64_t shuffle64(std::int64_t value, int from) {
  const auto low = static_cast<std::uint32_t>(shuffle(static_cast<int>(value), from));
  const int high = shuffle(static_cast<int>(value >> 32), from);
  return static_cast<std::int64_t>(high) << 32 | low;
}

// Over all lanes of the team, in an order that is the same for every lane.
QUIRE_DEVICE float team_sum(float x) {
  for (int step = kTeam / 2; step > 0; step /= 2) x += shuffle_xor(x, step);
  return x;
}
QUIRE_DEVICE float team_max(float x) {
  for (int step = kTeam / 2; step > 0; step /= 2) x = max_of(x, shuffle_xor(x, step));
  return x;
}

}  // namespace quire::gpu
