// SPDX-License-Identifier: Apache-2.0
// check(): the conformance suite on a backend.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "backend_object.h"
#include "bindings.h"
#include "call.h"
#include "conformance/case_list.h"
#include "conformance/run.h"
#include "fail.h"

namespace quire::python {
namespace {

using conformance::CaseStatus;

conformance::Suite parse_suite(const std::string& name) {
  if (name == "smoke") return conformance::Suite::kSmoke;
  if (name == "standard") return conformance::Suite::kStandard;
  if (name == "full") return conformance::Suite::kFull;
  fail(ErrorCode::kInvalidArgument, "suite: needs smoke, standard or full, has '", name, "'");
}

nb::dict check(nb::handle backend_object, const std::string& suite, const std::string& filter) {
  const BackendPtr backend = resolve_backend(backend_object, {});
  const std::vector<conformance::Case> cases =
      conformance::select(conformance::all_cases(), parse_suite(suite), filter);
  conformance::RunSummary summary;
  nb::list failures;
  for (const conformance::Case& one : cases) {
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    conformance::CaseResult result;
    {
      const nb::gil_scoped_release release;
      result = conformance::run_case(*backend->backend, one);
    }
    summary.add(result);
    if (result.status == CaseStatus::kFailed) {
      nb::dict failure;
      failure["name"] = one.name;
      failure["reason"] = result.reason;
      failures.append(failure);
    }
  }
  nb::dict report;
  report["backend"] = backend->name;
  report["suite"] = suite;
  report["passed"] = summary.num_passed;
  report["failed"] = summary.num_failed;
  report["skipped"] = summary.num_skipped;
  report["failures"] = failures;
  return report;
}

}  // namespace

void bind_check(nb::module_& module) {
  module.def("check", &check);
}

}  // namespace quire::python
