// SPDX-License-Identifier: Apache-2.0
// Python's Backend: one of its own, with its own threads, beside those that calls share by name.
#pragma once

#include <utility>

#include "runtime.h"

namespace quire::python {

struct BackendObject {
  BackendPtr shared;
  bool is_own = false;  // made by Backend(...): what it has made is given up with it

  explicit BackendObject(BackendPtr shared_, bool is_own_)
      : shared(std::move(shared_)), is_own(is_own_) {}
  BackendObject(BackendObject&& other) noexcept
      : shared(std::move(other.shared)), is_own(std::exchange(other.is_own, false)) {}
  BackendObject& operator=(BackendObject&&) = delete;
  ~BackendObject() {
    if (is_own) Runtime::instance().forget(shared);
  }
};

}  // namespace quire::python
