// SPDX-License-Identifier: Apache-2.0
// Which Python types lend tensors through a table of C functions, looked up once per type.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "dlpack_exchange.h"

namespace quire::python {

class ExchangeTypes {
 public:
  ExchangeTypes();
  // Null if the type of the object has none that is understood.
  const DlpackExchangeApi* find(nanobind::handle object);

  nanobind::object array_struct;  // the interned name "__array_struct__"

 private:
  struct Entry {
    PyTypeObject* type;  // held for ever: there are few, of libraries
    const DlpackExchangeApi* api;
  };
  std::vector<Entry> entries_;
};

// Needs the GIL.
ExchangeTypes& exchange_types();

}  // namespace quire::python
