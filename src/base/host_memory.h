// SPDX-License-Identifier: Apache-2.0
// The memory of the host: what every host backend hands out, and what tests use.
//
// Stateless: all that is known of an allocation stands in a header right before its first byte, so
// any thread may allocate and free. Copies and fills are done when the call returns.
#pragma once

#include "quire/device.h"

namespace quire {

// From this size on memory is mapped: reserved without being committed, and zero until written.
inline constexpr std::int64_t kMappedFromBytes = std::int64_t{4} << 20;

// Lives until the process ends, also through the destructors of other static objects.
// PageHint::kHuge has an effect on mapped memory only. Takes the default stream alone.
DeviceMemory& host_memory() noexcept;

}  // namespace quire
