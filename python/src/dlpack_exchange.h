// SPDX-License-Identifier: Apache-2.0
// The C structs of DLPack 1.3 by which a Python type lends tensors without a Python call
// (`__dlpack_c_exchange_api__`). Layouts and names of the fields are those of the standard.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>

namespace quire::python {

struct DlpackVersion {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
};

// Of an own tensor: `deleter` gives it back.
struct DlpackManagedTensor {
  DlpackVersion version;
  void* manager_ctx = nullptr;
  void (*deleter)(DlpackManagedTensor* self) = nullptr;
  std::uint64_t flags = 0;
  nanobind::dlpack::dltensor dl_tensor;
};

struct DlpackExchangeHeader {
  DlpackVersion version;
  DlpackExchangeHeader* prev_api = nullptr;
};

// Every function returns 0, or -1 with a Python error set.
struct DlpackExchangeApi {
  DlpackExchangeHeader header;
  int (*managed_tensor_allocator)(nanobind::dlpack::dltensor* prototype, DlpackManagedTensor** out,
                                  void* error_ctx,
                                  void (*set_error)(void* error_ctx, const char* kind,
                                                    const char* message));
  int (*managed_tensor_from_py_object_no_sync)(void* py_object, DlpackManagedTensor** out);
  int (*managed_tensor_to_py_object_no_sync)(DlpackManagedTensor* tensor, void** out_py_object);
  int (*dltensor_from_py_object_no_sync)(void* py_object, nanobind::dlpack::dltensor* out);
  int (*current_work_stream)(std::int32_t device_type, std::int32_t device_id, void** out_stream);
};

}  // namespace quire::python
