// SPDX-License-Identifier: Apache-2.0
// Python's BatchView.
#pragma once

#include "batch_arrays.h"

namespace quire::python {

struct BatchObject {
  BatchArrays arrays;
};

}  // namespace quire::python
