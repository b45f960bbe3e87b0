// SPDX-License-Identifier: Apache-2.0
#include "exchange_types.h"

namespace quire::python {
namespace {

// Python programs may make any number of types; those beyond this many are asked each time.
constexpr std::size_t kMaxEntries = 64;
constexpr std::uint32_t kMajorVersion = 1;

const DlpackExchangeApi* look_up(PyTypeObject* type) {
  const nanobind::object capsule = nanobind::steal(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (!capsule.is_valid()) {
    PyErr_Clear();
    return nullptr;
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* header = static_cast<const DlpackExchangeHeader*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (header != nullptr && header->version.major != kMajorVersion) header = header->prev_api;
  return reinterpret_cast<const DlpackExchangeApi*>(header);
}

}  // namespace

ExchangeTypes::ExchangeTypes()
    : array_struct(nanobind::steal(PyUnicode_InternFromString("__array_struct__"))) {}

const DlpackExchangeApi* ExchangeTypes::find(nanobind::handle object) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  for (const Entry& entry : entries_) {
    if (entry.type == type) return entry.api;
  }
  const DlpackExchangeApi* api = look_up(type);
  // Classes of a program that have none are not kept: they may come and go.
  const bool is_static = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) == 0;
  if ((api != nullptr || is_static) && entries_.size() < kMaxEntries) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    entries_.push_back({type, api});
  }
  return api;
}

ExchangeTypes& exchange_types() {
  static auto* types = new ExchangeTypes();  // not destroyed: the interpreter is gone by then
  return *types;
}

}  // namespace quire::python
