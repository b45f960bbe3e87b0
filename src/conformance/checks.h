// SPDX-License-Identifier: Apache-2.0
// What the kinds of cases check. Each returns the first violation, or nothing, and throws what the
// backend throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "conformance/compare.h"
#include "conformance/oracle.h"
#include "conformance/problem.h"
#include "quire/backend.h"

namespace quire::conformance {

struct CheckContext {
  AttentionBackend& backend;
  const Problem& problem;
  const Expected* expected;  // of kAttend, kInvariance and kCascade
  Accuracy accuracy;
  std::uint64_t digest = 0;
};

std::optional<std::string> check_attend(CheckContext& context);
std::optional<std::string> check_invariance(CheckContext& context);
std::optional<std::string> check_cascade(CheckContext& context);
std::optional<std::string> check_append(CheckContext& context);
std::optional<std::string> check_merge(CheckContext& context);
std::optional<std::string> check_copy_blocks(CheckContext& context);
std::optional<std::string> check_copy_region(CheckContext& context);
std::optional<std::string> check_export(CheckContext& context);

// How new K and V arrive for this backend: those that store inside attend know no other way.
Arrival arrival_for(const AttentionBackend& backend, const AttentionSpec& spec, Arrival wanted);

}  // namespace quire::conformance
