// SPDX-License-Identifier: Apache-2.0
// Measures backends of a device by the device's own clock, with the host's share kept out:
//
//   graph   calls recorded once and replayed: attend, append, a step. The time of a layer holds
//   1/32
//           of what planning takes, which serves all layers of a step.
//   queued  copies take lists from the host, so that nothing can be recorded: plain calls, enqueued
//           while the device is still busy.
//   wall    candidates that compute on the device and keep K and V on the host: the host's clock
//           around plain calls, against the same limits.
#pragma once

#include <memory>

#include "benchmark/instrument.h"

namespace quire::benchmark {

// Layers that share one plan, as in a model of usual depth.
inline constexpr int kLayersPerPlan = 32;

// `owner` has a meter. Both must outlive it.
std::unique_ptr<Instrument> make_device_instrument(const Candidate& owner,
                                                   const RunOptions& options);

}  // namespace quire::benchmark
