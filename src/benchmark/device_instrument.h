// SPDX-License-Identifier: Apache-2.0
// Measures backends of a device by the device's own clock, with the host's share kept out:
//
//   graph   calls recorded once and replayed: attend, append, a step. The time of a layer holds
//   1/32
//           of what planning takes, which serves all layers of a step.
//   queued  copies take lists from the host, so that nothing can be recorded: plain calls, enqueued
//           while the device is still busy.
//
// Peers over dense libraries (registry/dense_stages.h) gather K and V of every layer first. Their
// time is that of attention over what was gathered, and the gather is told apart; where their
// library cannot be recorded, calls are queued.
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
