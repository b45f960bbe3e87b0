// SPDX-License-Identifier: Apache-2.0
// The conformance suite behind the C interface. It is linked into the library: half a megabyte, so
// that a program can ask the very code that it runs whether it computes right on this machine.
#include <chrono>
#include <string_view>
#include <vector>

#include "capi/handles.h"
#include "capi/sized_struct.h"
#include "conformance/case_list.h"
#include "conformance/run.h"

namespace quire::capi {
namespace {

using conformance::Case;
using conformance::CaseResult;
using conformance::CaseStatus;
using conformance::Suite;

static_assert(QUIRE_SUITE_SMOKE == static_cast<int>(Suite::kSmoke) &&
              QUIRE_SUITE_STANDARD == static_cast<int>(Suite::kStandard) &&
              QUIRE_SUITE_FULL == static_cast<int>(Suite::kFull));
static_assert(QUIRE_CASE_PASSED == static_cast<int>(CaseStatus::kPassed) &&
              QUIRE_CASE_FAILED == static_cast<int>(CaseStatus::kFailed) &&
              QUIRE_CASE_SKIPPED == static_cast<int>(CaseStatus::kSkipped));

quire_case_result to_case_result(const Case& c, const CaseResult& result, std::size_t index,
                                 std::size_t num_cases) {
  auto value = make_struct<quire_case_result>();
  value.name = c.name.c_str();
  value.reason = result.reason.c_str();
  value.index = static_cast<std::int64_t>(index);
  value.num_cases = static_cast<std::int64_t>(num_cases);
  value.max_error = result.accuracy.max_error;
  value.max_limit = result.accuracy.max_limit;
  value.status = static_cast<std::int32_t>(result.status);
  return value;
}

quire_check_result run_suite(AttentionBackend& backend, const quire_check_options& options) {
  const Suite suite = to_enum<Suite>(options.suite, 3, "suite");
  const std::string_view filter = options.filter == nullptr ? "" : options.filter;
  const std::vector<Case> cases = conformance::select(conformance::all_cases(), suite, filter);
  require(!cases.empty(), "filter: no case of suite ", conformance::suite_name(suite), " matches '",
          filter, "'");
  const auto start = std::chrono::steady_clock::now();
  conformance::RunSummary summary;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseResult result = conformance::run_case(backend, cases[i]);
    summary.add(result);
    if (options.on_case == nullptr) continue;
    const quire_case_result given = to_case_result(cases[i], result, i, cases.size());
    if (options.on_case(options.context, &given) != 0) break;
  }
  auto value = make_struct<quire_check_result>();
  value.num_passed = summary.num_passed;
  value.num_failed = summary.num_failed;
  value.num_skipped = summary.num_skipped;
  value.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return value;
}

}  // namespace
}  // namespace quire::capi

using namespace quire::capi;

quire_status quire_check(quire_backend* backend, const quire_check_options* options,
                         quire_check_result* result) {
  return guarded([&] {
    OutStruct<quire_check_result> out(result, "result");
    quire::AttentionBackend& checked = *open(backend, "backend").backend;
    const quire_check_options given = read_optional_struct(options, "options");
    quire::require(given.reserved == 0, "options: reserved is not 0");
    out.set(run_suite(checked, given));
  });
}
