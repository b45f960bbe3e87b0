// SPDX-License-Identifier: Apache-2.0
// How fast a device reads, copies and multiplies when it does nothing else: the ceilings of
// `quire bench`.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/rate_probe_shape.h"

namespace quire::gpu {

// Reads, or copies, every byte num_passes times, in chunks that blocks take in turn: other ones in
// every pass, so that none finds its own again in the cache of its processor.
QUIRE_DEVICE void stream_bytes(const StreamBytesArgs& args) {
  const auto* from = static_cast<const Sixteen*>(args.from);
  auto* to = static_cast<Sixteen*>(args.to);
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Sixteen));
  constexpr std::int64_t kChunk = kStreamBytesChunk / kSize;
  const std::int64_t count = args.size_bytes / kSize;
  std::uint32_t bits = 0;
  for (int pass = 0; pass < args.num_passes; ++pass) {
    const std::int64_t first = (static_cast<std::int64_t>(block_index()) + 7 * pass) % num_blocks();
    for (std::int64_t chunk = first * kChunk; chunk < count; chunk += num_blocks() * kChunk) {
      Sixteen piece[kStreamBytesInFlight];
      QUIRE_UNROLL
      for (int k = 0; k < kStreamBytesInFlight; ++k) {
        const std::int64_t at = chunk + k * kStreamBytesThreads + thread_index();
        piece[k] = at < count ? from[at] : Sixteen{};
      }
      QUIRE_UNROLL
      for (int k = 0; k < kStreamBytesInFlight; ++k) {
        const std::int64_t at = chunk + k * kStreamBytesThreads + thread_index();
        if (to != nullptr) {
          if (at < count) to[at] = piece[k];
        } else {
          bits |= piece[k].x[0] | piece[k].x[1] | piece[k].x[2] | piece[k].x[3];
        }
      }
    }
  }
  // The buffers of the probe never hold all bits.
  if (bits == ~std::uint32_t{0}) *args.sink = bits;
}

// Products of bf16 matrices on registers alone.
QUIRE_DEVICE void multiply_rate(const MultiplyRateArgs& args) {
  // Numbers between 1/2 and 2 of both signs, all different: products of zeros would take less
  // power.
  const auto lane_bits = static_cast<std::uint32_t>(thread_index()) * 0x9e3779b9U;
  std::uint32_t a[4];
  std::uint32_t b[2];
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = ((lane_bits >> i) & 0x80ff80ffU) | 0x3f003f00U;
  QUIRE_UNROLL
  for (int i = 0; i < 2; ++i) b[i] = ((lane_bits << (i + 1)) & 0x80ff80ffU) | 0x3f003f00U;
  float sums[kMultiplySums][4] = {};
  for (int step = 0; step < args.num_steps; ++step) {
    QUIRE_UNROLL
    for (int i = 0; i < kMultiplySums; ++i) multiply_add(sums[i], a, b[0], b[1], BFloat16{});
  }
  float total = 0.0F;
  QUIRE_UNROLL
  for (int i = 0; i < kMultiplySums; ++i) {
    total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
  }
  if (total == negative_infinity()) *args.sink = total;
}

}  // namespace quire::gpu
