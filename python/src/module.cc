// SPDX-License-Identifier: Apache-2.0
// The module quire._quire. Its errors are quire.Error, with the code as an attribute.
#include <nanobind/nanobind.h>

#include <exception>

#include "base/hidden_tiles.h"
#include "bindings.h"
#include "quire/error.h"
#include "quire/version.h"

namespace {

namespace nb = nanobind;

// Raises payload(message) with its code.
void translate(const std::exception_ptr& pointer, void* payload) {
  try {
    std::rethrow_exception(pointer);
  } catch (const quire::Error& error) {
    const nb::handle type(static_cast<PyObject*>(payload));
    try {
      const nb::object raised = type(error.what());
      raised.attr("code") = quire::error_code_name(error.code());
      PyErr_SetObject(type.ptr(), raised.ptr());
    } catch (nb::python_error& failed) {
      failed.restore();
    }
  }
}

}  // namespace

NB_MODULE(_quire, module) {
  using namespace quire::python;
  quire::keep_onednn_from_hidden_tiles();  // PyTorch in this process would die of them too
  nb::set_leak_warnings(false);  // what a program still holds at its end is its own affair
  module.doc() = "The compiled part of quire.";
  module.attr("__version__") = quire::version();
  // Made in Python, so that it has a doc string and pickles.
  const nb::object error = nb::module_::import_("quire._error").attr("Error");
  module.attr("Error") = error;
  nb::register_exception_translator(&translate, nb::object(error).release().ptr());
  bind_spec(module);
  bind_backend(module);
  bind_kv_cache(module);
  bind_calls(module);
  bind_prepared(module);
  bind_convert(module);
  bind_prompt(module);
  bind_block_manager(module);
  bind_scheduler(module);
  bind_check(module);
}
