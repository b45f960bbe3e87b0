// SPDX-License-Identifier: Apache-2.0
// What a vendor's backend claims, held against the conformance suite: every case passes, but for
// those that a named refusal covers, and those are refused with that reason. So neither the claims
// can shrink nor a refusal grow unseen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/case.h"
#include "conformance/run.h"
#include "quire/backend.h"

namespace quire::testing {

struct Refusal {
  std::string reason;  // part of what the backend says
  bool (*covers)(const conformance::Case& c);
};

// A case that a library computes with fewer digits than the contract asks for, on some machine: it
// may fail there, and is counted so.
struct Inexact {
  std::string case_name;
};

// Runs the standard suite. Reports the counts as properties of the running test and on stdout.
conformance::RunSummary expect_claims(AttentionBackend& backend,
                                      const std::vector<Refusal>& refusals,
                                      const std::vector<Inexact>& inexact = {});

// What becomes of a row that sees a key or value that is not finite.
enum class WhoSees : std::uint8_t {
  kComputes,    // what the reference backend computes of it
  kBecomesNaN,  // all of it is NaN
};

// Values that are not finite reach the rows that see them and no other, as they do on the
// reference backend: in K and in V, under causal masks and biases.
void expect_not_finite_stays_put(AttentionBackend& backend, DType dtype,
                                 WhoSees who_sees = WhoSees::kComputes);

}  // namespace quire::testing
