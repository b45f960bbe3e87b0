// SPDX-License-Identifier: Apache-2.0
// Options given as a dict: every key is asked for by name, and one that nobody asked for is an
// Error.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fail.h"

namespace quire::python {

class DictReader {
 public:
  DictReader(const char* name, nanobind::handle source) : name_(name) {
    require(PyDict_Check(source.ptr()) != 0, name, ": needs a dict");
    dict_ = nanobind::borrow<nanobind::dict>(source);
  }

  template <class T>
  T get(const char* key, T otherwise) {
    asked_.emplace_back(key);
    if (!dict_.contains(key)) return otherwise;
    T value{};
    require(nanobind::try_cast(dict_[key], value), name_, ": '", key, "' has a wrong type");
    return value;
  }

  void require_all_known() const {
    for (const auto& [key, value] : dict_) {
      const auto text = nanobind::cast<std::string>(nanobind::str(key));
      require(std::find(asked_.begin(), asked_.end(), text) != asked_.end(), name_,
              ": has no field '", text, "'");
    }
  }

 private:
  const char* name_;
  nanobind::dict dict_;
  std::vector<std::string> asked_;
};

}  // namespace quire::python
