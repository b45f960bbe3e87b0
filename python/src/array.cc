// SPDX-License-Identifier: Apache-2.0
#include "array.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "dlpack_exchange.h"
#include "exchange_types.h"
#include "fail.h"

namespace quire::python {
namespace {

using Code = nb::dlpack::dtype_code;
using Element = nb::dlpack::dtype;

// NumPy's `__array_struct__`, as its array interface documents it.
struct NumpyArrayStruct {
  int two;
  int nd;
  char typekind;
  int itemsize;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;  // bytes
  void* data;
  PyObject* descr;
};
constexpr int kNumpyNotSwapped = 0x200;
constexpr int kNumpyWriteable = 0x400;

constexpr Element element(Code code, int bits) {
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
}

struct NamedElement {
  std::string_view name;
  Element element;
};
constexpr std::array kNamedElements{
    NamedElement{"bfloat16", element(Code::Bfloat, 16)},
    NamedElement{"float8_e4m3fn", element(Code::Float8_E4M3FN, 8)},
    NamedElement{"float8_e5m2", element(Code::Float8_E5M2, 8)},
    NamedElement{"float16", element(Code::Float, 16)},
    NamedElement{"float32", element(Code::Float, 32)},
    NamedElement{"float64", element(Code::Float, 64)},
    NamedElement{"int8", element(Code::Int, 8)},
    NamedElement{"int16", element(Code::Int, 16)},
    NamedElement{"int32", element(Code::Int, 32)},
    NamedElement{"int64", element(Code::Int, 64)},
    NamedElement{"uint8", element(Code::UInt, 8)},
    NamedElement{"uint16", element(Code::UInt, 16)},
    NamedElement{"uint32", element(Code::UInt, 32)},
    NamedElement{"uint64", element(Code::UInt, 64)},
    NamedElement{"bool", element(Code::Bool, 8)},
};

// Text of the Python error that is set, which it clears.
std::string take_python_error() {
  try {
    nb::raise_python_error();
  } catch (const nb::python_error& error) {
    return nb::cast<std::string>(nb::str(error.value()));
  }
}

void set_rank(const char* name, int rank, Array& array) {
  require(rank >= 0 && rank <= kMaxRank, name, ": has more than ", kMaxRank, " axes: ", rank);
  array.rank = rank;
}

Device device_of(const char* name, const nb::dlpack::device& device) {
  switch (device.device_type) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value:
      return {};
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value:
      return {DeviceKind::kCuda, device.device_id};
    case nb::device::rocm::value:
      return {DeviceKind::kRocm, device.device_id};
    default:
      fail(ErrorCode::kInvalidArgument, name,
           ": on a device that no backend computes on, DLPack type ", device.device_type);
  }
}

// An array without elements has strides of no meaning, and libraries differ in what they say.
void make_dense_if_empty(Array& array) {
  const auto begin = array.shape.begin();
  const auto end = begin + array.rank;
  if (std::find(begin, end, 0) == end) return;
  std::int64_t dense = 1;
  for (auto i = static_cast<std::size_t>(array.rank); i-- > 0;) {
    array.strides[i] = dense;
    dense *= std::max<std::int64_t>(array.shape[i], 1);
  }
}

void read_dltensor(const char* name, const nb::dlpack::dltensor& tensor, Array& array) {
  set_rank(name, tensor.ndim, array);
  require(tensor.dtype.lanes == 1, name,
          ": has vectors of lanes as elements: ", tensor.dtype.lanes);
  array.element = tensor.dtype;
  array.device = device_of(name, tensor.device);
  array.data =
      tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  std::int64_t dense = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    const auto axis = static_cast<std::size_t>(i);
    array.shape[axis] = tensor.shape[i];
    array.strides[axis] = tensor.strides != nullptr ? tensor.strides[i] : dense;
    dense *= tensor.shape[i];
  }
  make_dense_if_empty(array);
}

Element numpy_element(const char* name, const NumpyArrayStruct& array, nb::handle source) {
  const bool is_common = array.itemsize > 1 || array.typekind != 'f';
  if (is_common && array.typekind == 'f') return element(Code::Float, array.itemsize * 8);
  if (array.typekind == 'i') return element(Code::Int, array.itemsize * 8);
  if (array.typekind == 'u') return element(Code::UInt, array.itemsize * 8);
  if (array.typekind == 'b') return element(Code::Bool, 8);
  // The formats of ml_dtypes are NumPy's only by name.
  const auto dtype = nb::cast<std::string>(nb::str(source.attr("dtype").attr("name")));
  for (const NamedElement& named : kNamedElements) {
    if (named.name == dtype) return named.element;
  }
  fail(ErrorCode::kInvalidArgument, name, ": quire has no number format '", dtype, "'");
}

// Elements that numpy.ma hides would be read as if they were there.
void require_unmasked(const char* name, nb::handle source) {
  PyTypeObject* type = Py_TYPE(source.ptr());
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) == 0) return;  // numpy.ndarray itself
  const auto has = [type](const char* attribute) {
    return PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), attribute) != 0;
  };
  require(!has("mask") || !has("fill_value"), name,
          ": is a masked array, and quire has no masked elements: use filled()");
}

// False if the object has no `__array_struct__`.
bool read_numpy(const char* name, nb::handle source, Array& array) {
  nb::object capsule =
      nb::steal(PyObject_GetAttr(source.ptr(), exchange_types().array_struct.ptr()));
  if (!capsule.is_valid()) {
    PyErr_Clear();
    return false;
  }
  if (!PyCapsule_CheckExact(capsule.ptr())) return false;
  const auto* from =
      static_cast<const NumpyArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (from == nullptr) {
    PyErr_Clear();
    return false;
  }
  if (from->two != 2) return false;
  require_unmasked(name, source);
  array.element = numpy_element(name, *from, source);
  require((from->flags & kNumpyNotSwapped) != 0, name, ": its bytes are in the other order");
  set_rank(name, from->nd, array);
  array.data = from->data;
  array.read_only = (from->flags & kNumpyWriteable) == 0;
  array.library = ArrayLibrary::kNumpy;
  for (std::size_t i = 0; i < static_cast<std::size_t>(from->nd); ++i) {
    array.shape[i] = from->shape[i];
    const bool is_dense = from->strides[i] % from->itemsize == 0;
    array.strides[i] = from->strides[i] / from->itemsize;
    require(is_dense || from->shape[i] < 2, name, ": axis ", i, " has a stride of ",
            from->strides[i], " bytes, not a multiple of its elements of ", from->itemsize);
  }
  make_dense_if_empty(array);
  return true;
}

bool read_exchange(const char* name, nb::handle source, Array& array) {
  const DlpackExchangeApi* api = exchange_types().find(source);
  if (api == nullptr || api->dltensor_from_py_object_no_sync == nullptr) return false;
  nb::dlpack::dltensor tensor;
  if (api->dltensor_from_py_object_no_sync(source.ptr(), &tensor) != 0) {
    fail(ErrorCode::kInvalidArgument, name, ": ", take_python_error());
  }
  read_dltensor(name, tensor, array);
  array.library = ArrayLibrary::kExchange;
  return true;
}

bool read_other(const char* name, nb::handle source, Array& array) {
  nb::ndarray<> writable;
  nb::ndarray<nb::ro> readable;
  nb::dlpack::dltensor tensor;
  if (nb::try_cast(source, writable, false)) {
    array.imported = writable;
  } else if (nb::try_cast(source, readable, false)) {
    array.imported = nb::ndarray<>(readable);
    array.read_only = true;
  } else {
    PyErr_Clear();
    return false;
  }
  const nb::ndarray<>& from = array.imported;
  set_rank(name, static_cast<int>(from.ndim()), array);
  std::array<std::int64_t, kMaxRank> shape{};
  for (std::size_t i = 0; i < from.ndim(); ++i) shape[i] = static_cast<std::int64_t>(from.shape(i));
  tensor.data = const_cast<void*>(static_cast<const void*>(from.data()));
  tensor.device = {from.device_type(), from.device_id()};
  tensor.ndim = static_cast<std::int32_t>(from.ndim());
  tensor.dtype = from.dtype();
  tensor.shape = shape.data();
  tensor.strides = const_cast<std::int64_t*>(from.stride_ptr());
  read_dltensor(name, tensor, array);
  return true;
}

}  // namespace

Array import_array(const char* name, nb::handle source) {
  Array array;
  array.source = nb::borrow(source);
  // In the order of the cost of finding out.
  if (read_exchange(name, source, array) || read_numpy(name, source, array) ||
      read_other(name, source, array)) {
    return array;
  }
  const auto type = nb::cast<std::string>(nb::str(source.type().attr("__name__")));
  fail(ErrorCode::kInvalidArgument, name,
       ": needs an array with __dlpack__ or the buffer protocol, has ", type);
}

std::string element_name(const Element& element_type) {
  for (const NamedElement& named : kNamedElements) {
    if (named.element == element_type) return std::string(named.name);
  }
  return text("code ", static_cast<int>(element_type.code), ", ",
              static_cast<int>(element_type.bits), " bits");
}

DType element_dtype(const char* name, const Array& array) {
  const Element& e = array.element;
  if (e == element(Code::Float, 32)) return DType::kF32;
  if (e == element(Code::Bfloat, 16)) return DType::kBF16;
  if (e == element(Code::Float, 16)) return DType::kF16;
  if (e == element(Code::Float8_E4M3FN, 8)) return DType::kF8E4M3;
  if (e == element(Code::Float8_E5M2, 8)) return DType::kF8E5M2;
  if (e == element(Code::Int, 8)) return DType::kI8;
  fail(ErrorCode::kInvalidArgument, name,
       ": needs float32, float16, bfloat16, float8_e4m3fn, float8_e5m2 or int8, has ",
       element_name(e));
}

DType element_dtype(const char* name, const Array& array, DType stored) {
  const bool is_bytes =
      array.element == element(Code::UInt, 8) || array.element == element(Code::Int, 8);
  if (is_bytes && is_quantized(stored)) return stored;
  const DType has = element_dtype(name, array);
  require(has == stored, name, ": holds ", dtype_name(has), ", not ", dtype_name(stored));
  return has;
}

TensorView tensor_view(const Array& array, DType dtype) {
  TensorView view;
  view.data = array.data;
  view.dtype = dtype;
  view.rank = array.rank;
  view.shape = array.shape;
  view.strides = array.strides;
  view.device = array.device;
  return view;
}

TensorView tensor_view(const char* name, const Array& array) {
  return tensor_view(array, element_dtype(name, array));
}

MutableTensorView mutable_view(const char* name, const Array& array, DType dtype) {
  require(!array.read_only, name, ": is read-only");
  MutableTensorView view;
  view.data = array.data;
  view.dtype = dtype;
  view.rank = array.rank;
  view.shape = array.shape;
  view.strides = array.strides;
  view.device = array.device;
  return view;
}

void require_no_gradient(const char* name, const Array& array) {
  if (array.library != ArrayLibrary::kExchange) return;
  const nb::object wanted = nb::steal(PyObject_GetAttrString(array.source.ptr(), "requires_grad"));
  if (!wanted.is_valid()) {
    PyErr_Clear();
    return;
  }
  if (wanted.ptr() != Py_True) return;
  const nb::object enabled = nb::module_::import_("torch").attr("is_grad_enabled")();
  require(enabled.ptr() != Py_True, name,
          ": requires grad, but quire computes no gradients: use torch.no_grad() or detach()");
}

FloatArray float_array(const char* name, nb::handle source) {
  FloatArray result;
  if (nb::isinstance<nb::sequence>(source) && !nb::hasattr(source, "dtype")) {
    for (const nb::handle item : source) {
      float value = 0;
      require(nb::try_cast(item, value), name, ": index ", result.copied.size(),
              " is not a number");
      result.copied.push_back(value);
    }
    result.view = result.copied;
    return result;
  }
  result.array = import_array(name, source);
  const Array& array = result.array;
  require(array.rank <= 1, name, ": needs one axis, has ", array.rank);
  require(array.element == element(Code::Float, 32) || array.device.is_host(), name,
          ": needs float32, has ", element_name(array.element));
  const std::int64_t size = array.size();
  const bool is_dense = array.rank == 0 || size < 2 || array.strides[0] == 1;
  if (array.element == element(Code::Float, 32) && is_dense) {
    result.view = {static_cast<const float*>(array.data), size, array.device};
    return result;
  }
  require(array.device.is_host(), name, ": needs contiguous elements");
  for (std::int64_t i = 0; i < size; ++i) {
    const auto* at = static_cast<const char*>(array.data) +
                     i * (array.rank == 0 ? 0 : array.strides[0]) * (array.element.bits / 8);
    if (array.element == element(Code::Float, 64)) {
      double value = 0;
      std::memcpy(&value, at, sizeof value);
      result.copied.push_back(static_cast<float>(value));
    } else if (array.element == element(Code::Float, 32)) {
      float value = 0;
      std::memcpy(&value, at, sizeof value);
      result.copied.push_back(value);
    } else if (array.element == element(Code::Bfloat, 16)) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, at, sizeof bits);
      const std::uint32_t wide = std::uint32_t{bits} << 16;
      float value = 0;
      std::memcpy(&value, &wide, sizeof value);
      result.copied.push_back(value);
    } else {
      fail(ErrorCode::kInvalidArgument, name, ": needs float32, has ", element_name(array.element));
    }
  }
  result.view = result.copied;
  return result;
}

}  // namespace quire::python
