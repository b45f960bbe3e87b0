// SPDX-License-Identifier: Apache-2.0
// Arrays of any library as views: nothing is copied on the way in.
//
// NumPy arrays are read through `__array_struct__`, which also carries the number formats of
// ml_dtypes; types with `__dlpack_c_exchange_api__` (PyTorch) through that; every other object
// through `__dlpack__` or the buffer protocol. What cannot be read is an Error that names the
// argument. All functions need the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/device.h"
#include "quire/dtype.h"
#include "quire/tensor.h"

namespace quire::python {

namespace nb = nanobind;

enum class ArrayLibrary : std::uint8_t { kNumpy, kExchange, kOther };

struct Array {
  void* data = nullptr;
  nb::dlpack::dtype element{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};    // [rank]
  std::array<std::int64_t, kMaxRank> strides{};  // [rank], in elements
  Device device;
  bool read_only = false;
  ArrayLibrary library = ArrayLibrary::kOther;
  nb::object source;       // the caller's object: keeps the memory
  nb::ndarray<> imported;  // kOther: what DLPack handed over

  std::int64_t size() const noexcept {
    std::int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= shape[static_cast<std::size_t>(i)];
    return product;
  }
};

// `name` is that of the argument, for messages.
Array import_array(const char* name, nb::handle source);

// "float32", "int64", "bool" or "code 5, 128 bits".
std::string element_name(const nb::dlpack::dtype& element_type);
// How libraries name a format of quire.
nb::dlpack::dtype element_of(DType dtype);

// The format of the elements; an Error unless quire has it. `stored` reads bytes of no format of
// their own (uint8 and int8) as that one.
DType element_dtype(const char* name, const Array& array);
DType element_dtype(const char* name, const Array& array, DType stored);

TensorView tensor_view(const Array& array, DType dtype);
TensorView tensor_view(const char* name, const Array& array);
// Refuses read-only memory.
MutableTensorView mutable_view(const char* name, const Array& array, DType dtype);

// Refuses a tensor whose gradient would be lost without a word.
void require_no_gradient(const char* name, const Array& array);

// f32 values, contiguous: copied if they are anything else, and from lists and numbers. Device
// arrays must fit as they are.
struct FloatArray {
  Array array;
  std::vector<float> copied;
  ArrayView<float> view;
};
FloatArray float_array(const char* name, nb::handle source);

// The stream on which the library of a device array works now; none for host arrays.
Stream current_stream(const Array& array);

// A new array of the library that `like` is from, on the same device.
Array empty_array(const Array& like, std::initializer_list<std::int64_t> shape, DType dtype);
// What the caller is given for an array of empty_array.
nb::object result_of(const Array& like, const Array& made);

}  // namespace quire::python
