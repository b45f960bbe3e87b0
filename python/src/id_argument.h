// SPDX-License-Identifier: Apache-2.0
// Ids of sequences and requests as Python passes them: any whole number, so that one that no id can
// be is an Error with its value rather than a TypeError.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "fail.h"

namespace quire::python {

struct IdArgument {
  nanobind::object number;

  std::uint64_t value() const {
    const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
    if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      fail(ErrorCode::kInvalidArgument,
           "id: not one that was given out: ", nanobind::str(number).c_str());
    }
    return value;
  }
};

}  // namespace quire::python

template <>
struct nanobind::detail::type_caster<quire::python::IdArgument> {
  NB_TYPE_CASTER(quire::python::IdArgument, const_name("int"))

  bool from_python(handle source, std::uint8_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    value.number = steal(PyNumber_Index(source.ptr()));
    if (value.number.is_valid()) return true;
    PyErr_Clear();
    return false;
  }
};
