// SPDX-License-Identifier: Apache-2.0
// New arrays of the library that an argument came from.
#include <string>

#include "array.h"
#include "dlpack_exchange.h"
#include "exchange_types.h"
#include "fail.h"

namespace quire::python {

nb::dlpack::dtype element_of(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto make = [](Code code, std::uint8_t bits) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  };
  switch (dtype) {
    case DType::kF32:
      return make(Code::Float, 32);
    case DType::kF16:
      return make(Code::Float, 16);
    case DType::kBF16:
      return make(Code::Bfloat, 16);
    case DType::kF8E4M3:
      return make(Code::Float8_E4M3FN, 8);
    case DType::kF8E5M2:
      return make(Code::Float8_E5M2, 8);
    case DType::kI8:
      return make(Code::Int, 8);
  }
  return {};
}

namespace {

void set_error(void* context, const char* kind, const char* message) {
  *static_cast<std::string*>(context) = text(kind, ": ", message);
}

// Through the table of C functions of the type.
nb::object empty_exchange(const DlpackExchangeApi& api, const Array& like,
                          std::vector<std::int64_t>& shape, DType dtype) {
  nb::dlpack::dltensor prototype;
  const bool is_host = like.device.is_host();
  prototype.device = {is_host ? nb::device::cpu::value : nb::device::cuda::value,
                      is_host ? 0 : like.device.index};
  if (like.device.kind == DeviceKind::kRocm) prototype.device.device_type = nb::device::rocm::value;
  prototype.ndim = static_cast<std::int32_t>(shape.size());
  prototype.dtype = element_of(dtype);
  prototype.shape = shape.data();
  DlpackManagedTensor* tensor = nullptr;
  std::string error;
  if (api.managed_tensor_allocator(&prototype, &tensor, &error, &set_error) != 0) {
    fail(ErrorCode::kOutOfMemory, "out: ", error);
  }
  void* made = nullptr;
  if (api.managed_tensor_to_py_object_no_sync(tensor, &made) != 0) nb::raise_python_error();
  return nb::steal(static_cast<PyObject*>(made));
}

nb::object library_function(const char* name) {
  return nb::module_::import_("quire._arrays").attr(name);
}

nb::handle numpy_empty() {
  static const nb::handle function =
      nb::object(nb::module_::import_("numpy").attr("empty")).release();
  return function;
}

}  // namespace

Stream current_stream(const Array& array) {
  if (array.device.is_host()) return {};
  const DlpackExchangeApi* api = exchange_types().find(array.source);
  if (api != nullptr && api->current_work_stream != nullptr) {
    void* stream = nullptr;
    const int type =
        array.device.kind == DeviceKind::kRocm ? nb::device::rocm::value : nb::device::cuda::value;
    if (api->current_work_stream(type, array.device.index, &stream) != 0) {
      nb::raise_python_error();
    }
    return {stream};
  }
  const auto handle = nb::cast<std::uintptr_t>(
      library_function("current_stream")(array.source, array.device.index));
  return {reinterpret_cast<void*>(handle)};
}

Array empty_array(const Array& like, std::initializer_list<std::int64_t> shape, DType dtype) {
  std::vector<std::int64_t> extents(shape);
  const DlpackExchangeApi* api =
      like.library == ArrayLibrary::kExchange ? exchange_types().find(like.source) : nullptr;
  if (api != nullptr && api->managed_tensor_allocator != nullptr) {
    return import_array("out", empty_exchange(*api, like, extents, dtype));
  }
  nb::object axes = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(extents.size())));
  for (std::size_t i = 0; i < extents.size(); ++i) {
    PyTuple_SetItem(axes.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(extents[i]));
  }
  if (like.library == ArrayLibrary::kNumpy) {
    if (like.element == element_of(dtype)) {
      return import_array("out", numpy_empty()(axes, like.source.attr("dtype")));
    }
    if (dtype == DType::kF32) return import_array("out", numpy_empty()(axes, "float32"));
  }
  return import_array("out", library_function("empty")(like.source, axes, dtype_name(dtype)));
}

nb::object result_of(const Array& like, const Array& made) {
  if (like.library != ArrayLibrary::kOther) return made.source;
  return library_function("in_library_of")(like.source, made.source);
}

}  // namespace quire::python
