// SPDX-License-Identifier: Apache-2.0
// Runs cases on a backend.
//
//   for (const Case& c : select(all_cases(), Suite::kStandard, "decode/*")) {
//     const CaseRunner runner(c);                       // builds the inputs and the exact result
//     const CaseResult result = runner.run(*backend);   // any number of backends
//   }
//
// Everything goes through the public calls and the backend's memory, so a device backend runs as a
// host one does. Nothing is global: runners may work in several threads, each with its own backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/case.h"
#include "conformance/compare.h"
#include "quire/backend.h"

namespace quire::conformance {

enum class CaseStatus : std::uint8_t { kPassed, kFailed, kSkipped };

struct CaseResult {
  CaseStatus status = CaseStatus::kPassed;
  std::string reason;  // every reason why it was skipped, or the first difference
  Accuracy accuracy;   // where outputs were compared
  // Of the bits of out and lse: equal for backends that must agree bit by bit. 0: no output.
  std::uint64_t digest = 0;
};

struct RunSummary {
  std::int64_t num_passed = 0;
  std::int64_t num_failed = 0;
  std::int64_t num_skipped = 0;
  void add(const CaseResult& result) noexcept;
};

class CaseRunner {
 public:
  explicit CaseRunner(const Case& c);
  ~CaseRunner();
  CaseRunner(CaseRunner&&) noexcept;

  // Never throws for what a backend does: an error that it throws is a failure of the case.
  CaseResult run(AttentionBackend& backend) const;

 private:
  struct Inputs;
  std::unique_ptr<Inputs> inputs_;
};

// For one backend.
CaseResult run_case(AttentionBackend& backend, const Case& c);

// The cases of a suite whose names match: `*` is any text, `?` any character, and several patterns
// are separated by commas. An empty filter matches all.
std::vector<Case> select(const std::vector<Case>& cases, Suite suite, std::string_view filter = {});
bool matches(std::string_view name, std::string_view filter) noexcept;

}  // namespace quire::conformance
