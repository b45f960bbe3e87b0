// SPDX-License-Identifier: Apache-2.0
// What `quire bench` says of a vendor's backend on the host.
#pragma once

#include <string>

namespace quire::testing {

// A run of a tiny case beside `cpu`: the gather of a dense peer is in the result and in its JSON as
// a part of the time, and `cpu` has none. No time decides.
void expect_gather_is_told(const std::string& candidate);

}  // namespace quire::testing
