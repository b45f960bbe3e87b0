// SPDX-License-Identifier: Apache-2.0
// The one list of conformance cases.
//
// standard holds every value of every dimension at least once, with combinations chosen where
// features meet; full adds pairs of values (pair_cases.cc) and what takes long. Names are unique.
#pragma once

#include <vector>

#include "conformance/case.h"

namespace quire::conformance {

// Smoke first, then standard, then full; by family within.
std::vector<Case> all_cases();

}  // namespace quire::conformance
