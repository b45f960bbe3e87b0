// SPDX-License-Identifier: Apache-2.0
#include "conformance/run.h"

#include <exception>

#include "base/check.h"
#include "conformance/checks.h"
#include "conformance/loaded_batch.h"
#include "conformance/oracle.h"
#include "layout/kv_extent.h"

namespace quire::conformance {
namespace {

bool needs_oracle(Check check) {
  return check == Check::kAttend || check == Check::kInvariance || check == Check::kCascade;
}

std::optional<std::string> run_check(CheckContext& context) {
  switch (context.problem.c.check) {
    case Check::kAttend:
      return check_attend(context);
    case Check::kInvariance:
      return check_invariance(context);
    case Check::kCascade:
      return check_cascade(context);
    case Check::kAppend:
      return check_append(context);
    case Check::kMerge:
      return check_merge(context);
    case Check::kCopyBlocks:
      return check_copy_blocks(context);
    case Check::kCopyRegion:
      return check_copy_region(context);
    case Check::kExport:
      return check_export(context);
  }
  return "unknown check";
}

bool compares_bits(Check check) {
  return check == Check::kAppend || check == Check::kCopyBlocks || check == Check::kCopyRegion ||
         check == Check::kExport;
}

// Every reason why the case cannot run here, or nothing.
std::string skip_reason(AttentionBackend& backend, const Problem& problem) {
  if (problem.c.check == Check::kInvariance && !backend.info().batch_invariant) {
    return "the backend does not promise batch invariance";
  }
  const AttentionSpec spec = spec_for(backend, problem);
  if (problem.c.check == Check::kCopyRegion && is_opaque(spec.kv.layout)) {
    return concat("the tokens of the private layout ", static_cast<int>(spec.kv.layout),
                  " cannot be copied apart from their block");
  }
  const Support support = backend.supports(spec);
  if (support.ok() && support.own_rounding && compares_bits(problem.c.check)) {
    return "8-bit K and V are rounded in a way of the backend's own: their bits are not compared";
  }
  std::string reasons;
  for (const std::string& reason : support.reasons) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  return reasons;
}

bool matches_one(std::string_view name, std::string_view pattern) noexcept {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    for (std::size_t skip = 0; skip <= name.size(); ++skip) {
      if (matches_one(name.substr(skip), pattern.substr(1))) return true;
    }
    return false;
  }
  if (name.empty() || (pattern.front() != '?' && pattern.front() != name.front())) return false;
  return matches_one(name.substr(1), pattern.substr(1));
}

}  // namespace

struct CaseRunner::Inputs {
  Problem problem;
  Expected expected;
};

CaseRunner::CaseRunner(const Case& c) : inputs_(std::make_unique<Inputs>()) {
  inputs_->problem = make_problem(c);
  if (needs_oracle(c.check)) inputs_->expected = expect(inputs_->problem);
}

CaseRunner::~CaseRunner() = default;
CaseRunner::CaseRunner(CaseRunner&&) noexcept = default;

CaseResult CaseRunner::run(AttentionBackend& backend) const {
  CaseResult result;
  Expected rounded;
  const Problem& problem = inputs_->problem;
  CheckContext context{backend, problem, &inputs_->expected, {}};
  try {
    result.reason = skip_reason(backend, problem);
    if (!result.reason.empty()) {
      result.status = CaseStatus::kSkipped;
      return result;
    }
    const bool own_rounding = backend.supports(spec_for(backend, problem)).own_rounding;
    if (own_rounding && needs_oracle(problem.c.check)) {
      rounded = expect_own_rounding(problem);
      context.expected = &rounded;
    }
    if (const auto found = run_check(context)) {
      result.status = CaseStatus::kFailed;
      result.reason = *found;
    }
  } catch (const Error& error) {
    result.status = CaseStatus::kFailed;
    result.reason = concat(error_code_name(error.code()), ": ", error.what());
  } catch (const std::exception& error) {
    result.status = CaseStatus::kFailed;
    result.reason = concat("exception: ", error.what());
  }
  result.accuracy = context.accuracy;
  result.digest = context.digest;
  return result;
}

CaseResult run_case(AttentionBackend& backend, const Case& c) {
  return CaseRunner(c).run(backend);
}

void RunSummary::add(const CaseResult& result) noexcept {
  if (result.status == CaseStatus::kPassed) ++num_passed;
  if (result.status == CaseStatus::kFailed) ++num_failed;
  if (result.status == CaseStatus::kSkipped) ++num_skipped;
}

bool matches(std::string_view name, std::string_view filter) noexcept {
  if (filter.empty()) return true;
  while (!filter.empty()) {
    const std::size_t comma = filter.find(',');
    if (matches_one(name, filter.substr(0, comma))) return true;
    filter = comma == std::string_view::npos ? std::string_view{} : filter.substr(comma + 1);
  }
  return false;
}

std::vector<Case> select(const std::vector<Case>& cases, Suite suite, std::string_view filter) {
  std::vector<Case> selected;
  for (const Case& c : cases) {
    if (c.suite <= suite && matches(c.name, filter)) selected.push_back(c);
  }
  return selected;
}

}  // namespace quire::conformance
