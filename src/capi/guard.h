// SPDX-License-Identifier: Apache-2.0
// The border of the C interface: no exception crosses it, and its text stays with the thread.
//
//   quire_status quire_thing(quire_backend* backend, int32_t* result) {
//     return guarded([&] {
//       int32_t& out = require_out(result, "result");   // before anything is done
//       out = thing(open(backend, "backend"));
//     });
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "quire/c/base.h"

namespace quire::capi {

// Called inside a catch block: keeps the text of the exception under way for this thread.
quire_status report_exception() noexcept;
// The same for an error that came as a value.
quire_status report_status(const Status& status) noexcept;

template <class Body>
quire_status guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return QUIRE_OK;
  } catch (...) {
    return report_exception();
  }
}

template <class T>
T& require_out(T* result, const char* what) {
  require(result != nullptr, what, ": is NULL, where the result should go");
  return *result;
}

// A flag of the caller: 0 or 1.
inline bool to_bool(std::int32_t flag, const char* what) {
  require(flag == 0 || flag == 1, what, ": a flag is 0 or 1, not ", flag);
  return flag == 1;
}

// An enumerator of the caller, of [0, num_values).
template <class Enum>
Enum to_enum(std::int32_t value, int num_values, const char* what) {
  require(value >= 0 && value < num_values, what, ": unknown value ", value, ", not in [0, ",
          num_values, ")");
  return static_cast<Enum>(value);
}

// An array of the caller: present if it has elements.
template <class T>
void require_array(const T* data, std::int64_t size, const char* what) {
  require(size >= 0, what, ": cannot have ", size, " elements");
  require(size == 0 || data != nullptr, what, ": is NULL, but should have ", size, " elements");
}

// An index of the caller, of [0, size).
inline std::size_t to_index(std::int64_t index, std::size_t size, const char* what) {
  require(index >= 0 && static_cast<std::uint64_t>(index) < size, what, ": ", index,
          " is not one of the ", size);
  return static_cast<std::size_t>(index);
}

// A copy that the caller frees with quire_text_free. Throws std::bad_alloc.
char* copy_text(std::string_view text);

}  // namespace quire::capi
