// SPDX-License-Identifier: Apache-2.0
// The one way in which the harness reports a difference.
#pragma once

#include <stdexcept>
#include <utility>

#include "base/check.h"

namespace quire::test {

template <class... Args>
void expect(bool condition, Args&&... args) {
  if (!condition) throw std::runtime_error(concat(std::forward<Args>(args)...));
}

template <class A, class B>
void expect_equal(const char* what, const A& actual, const B& expected) {
  expect(actual == static_cast<A>(expected), what, ": is ", actual, ", must be ", expected);
}

}  // namespace quire::test
