// SPDX-License-Identifier: Apache-2.0
// Throwing with values, and invariants. Messages are built only when something is wrong.
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "quire/error.h"

namespace quire {

// "a", 1, " b" -> "a1 b".
template <class... Args>
std::string concat(Args&&... args) {
  std::ostringstream stream;
  (stream << ... << std::forward<Args>(args));
  return stream.str();
}

template <class... Args>
[[noreturn]] void fail(ErrorCode code, Args&&... args) {
  throw Error(code, concat(std::forward<Args>(args)...));
}

// For what the caller got wrong.
template <class... Args>
void require(bool condition, Args&&... args) {
  if (!condition) [[unlikely]] {
    fail(ErrorCode::kInvalidArgument, std::forward<Args>(args)...);
  }
}

}  // namespace quire

// A broken invariant of quire itself; always on, for cold paths.
#define QUIRE_CHECK(condition)                                                               \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      ::quire::fail(::quire::ErrorCode::kInternal, "broken invariant: ", #condition, " in ", \
                    __FILE__, ":", __LINE__);                                                \
    }                                                                                        \
  } while (false)

// The same for hot paths: debug builds only.
#ifdef NDEBUG
#define QUIRE_DCHECK(condition) \
  do {                          \
  } while (false)
#else
#define QUIRE_DCHECK(condition) QUIRE_CHECK(condition)
#endif
