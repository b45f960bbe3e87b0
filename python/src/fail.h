// SPDX-License-Identifier: Apache-2.0
// Throwing with values, as src/base/check.h does it. That header cannot be used here: a function
// named concat in the namespace of the types that are bound is taken for nanobind's own.
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "quire/error.h"

namespace quire::python {

// "a", 1, " b" -> "a1 b".
template <class... Args>
std::string text(Args&&... args) {
  std::ostringstream stream;
  (stream << ... << std::forward<Args>(args));
  return stream.str();
}

template <class... Args>
[[noreturn]] void fail(ErrorCode code, Args&&... args) {
  throw Error(code, text(std::forward<Args>(args)...));
}

// For what the caller got wrong.
template <class... Args>
void require(bool condition, Args&&... args) {
  if (!condition) [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, std::forward<Args>(args)...);
  }
}

}  // namespace quire::python
