// SPDX-License-Identifier: Apache-2.0
// Lists of block copies as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

#include <span>

#include "quire/kv_step.h"

namespace quire::python {

// One dict per group: on_device, to_host, to_device, on_host, each a list of (src, dst) pairs.
inline nanobind::list copy_stage(std::span<const GroupCopies> groups) {
  const auto pairs = [](std::span<const BlockCopy> copies) {
    nanobind::list result;
    for (const BlockCopy& copy : copies) result.append(nanobind::make_tuple(copy.src, copy.dst));
    return result;
  };
  nanobind::list result;
  for (const GroupCopies& group : groups) {
    nanobind::dict row;
    row["on_device"] = pairs(group.on_device);
    row["to_host"] = pairs(group.to_host);
    row["to_device"] = pairs(group.to_device);
    row["on_host"] = pairs(group.on_host);
    result.append(row);
  }
  return result;
}

}  // namespace quire::python
