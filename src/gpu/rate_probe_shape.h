// SPDX-License-Identifier: Apache-2.0
// The shape of the probes of a device's limits (kernels/rate_probes.h), which the host that counts
// their work needs as well.
#pragma once

#include <cstdint>

namespace quire::gpu {

inline constexpr int kStreamBytesThreads = 256;
inline constexpr int kStreamBytesInFlight = 8;  // loads of 16 bytes
inline constexpr std::int64_t kStreamBytesChunk = kStreamBytesThreads * kStreamBytesInFlight * 16;

inline constexpr int kMultiplyThreads = 256;
inline constexpr int kMultiplySums = 8;  // independent products of a team
// Operations of one step of a thread block: products of [16, 16] by [16, 8].
inline constexpr std::int64_t kMultiplyStepOps =
    std::int64_t{kMultiplyThreads / 32} * kMultiplySums * (2 * 16 * 16 * 8);

}  // namespace quire::gpu
