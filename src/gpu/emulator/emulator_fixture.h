// SPDX-License-Identifier: Apache-2.0
// For tests of the emulator: launches at both warp widths, and the fault that a launch ends with.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>

#include "gpu/emulator/simt.h"

namespace quire::simt {

class WarpWidths : public testing::TestWithParam<int> {
 protected:
  int width() const { return GetParam(); }
  // Blocks of two warps.
  LaunchShape two_warps(std::size_t shared_bytes = 0, std::uint32_t num_blocks = 1) const {
    return {.grid = {num_blocks},
            .block = {static_cast<std::uint32_t>(2 * width())},
            .shared_bytes = shared_bytes,
            .warp_width = width()};
  }
  LaunchShape one_warp(std::size_t shared_bytes = 0) const {
    return {.block = {static_cast<std::uint32_t>(width())},
            .shared_bytes = shared_bytes,
            .warp_width = width()};
  }
};

inline void PrintTo(const FaultReport& report, std::ostream* stream) {
  *stream << fault_kind_name(report.kind);
}

// The fault of a launch, nothing where it ended well.
template <class Kernel>
std::optional<FaultReport> fault_of(const LaunchShape& shape, const Kernel& kernel,
                                    const LaunchOptions& options = {}) {
  try {
    launch("test_kernel", shape, kernel, options);
  } catch (const KernelFault& fault) {
    return fault.report();
  }
  return std::nullopt;
}

// Matches the fault of a launch by its kind and a part of its message.
MATCHER_P2(Faults, kind, text, std::string(fault_kind_name(kind)) + " with \"" + text + "\"") {
  if (!arg) {
    *result_listener << "no fault";
    return false;
  }
  *result_listener << arg->message;
  return arg->kind == kind && arg->message.find(text) != std::string::npos;
}

MATCHER(EndsWell, "no fault") {
  if (arg) *result_listener << arg->message;
  return !arg.has_value();
}

// For what only the hooks see.
#define QUIRE_SIMT_NEEDS_HOOKS()                                                    \
  do {                                                                              \
    if (!::quire::simt::hooks_present()) GTEST_SKIP() << "this build has no hooks"; \
  } while (false)

}  // namespace quire::simt
