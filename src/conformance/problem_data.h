// SPDX-License-Identifier: Apache-2.0
// The random parts of a problem, in the order in which make_problem draws them.
#pragma once

#include "conformance/problem.h"
#include "conformance/random.h"

namespace quire::conformance {

void draw_trees(Problem& problem, Random& random);
void draw_bias(Problem& problem, Random& random);
void find_seen_slots(Problem& problem);
void draw_queries(Problem& problem, Random& random);
void draw_kv(Problem& problem, Random& random);

}  // namespace quire::conformance
