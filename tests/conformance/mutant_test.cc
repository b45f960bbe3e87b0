// SPDX-License-Identifier: Apache-2.0
// The suite proves itself: a backend without bugs passes it, and each of many deliberate bugs makes
// at least one case fail.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/sanitizers.h"
#include "conformance/case_list.h"
#include "conformance/run.h"
#include "mutant_backend.h"

namespace quire::conformance {
namespace {

struct Mutant {
  Bug bug;
  std::unique_ptr<MutantBackend> backend;
  std::string caught_by;
  std::string reason;
};

// Large offsets are a matter of the full suite alone.
bool is_for_mutants(const Case& c) {
  return c.suite <= Suite::kStandard || matches(c.name, "*/large_offsets*");
}

TEST(Mutants, EveryBugIsCaughtByName) {
  std::vector<Mutant> mutants;
  for (const Bug bug : all_bugs()) {
    if (kHasAddressSanitizer && bug == Bug::kWorkspaceOverrun) continue;
    mutants.push_back({bug, std::make_unique<MutantBackend>(bug), {}, {}});
  }
  for (const Case& c : all_cases()) {
    if (!is_for_mutants(c)) continue;
    const CaseRunner runner(c);
    for (Mutant& mutant : mutants) {
      if (!mutant.caught_by.empty()) continue;
      const CaseResult result = runner.run(*mutant.backend);
      ASSERT_NE(result.status, CaseStatus::kSkipped) << c.name << ": " << result.reason;
      if (result.status == CaseStatus::kPassed) continue;
      ASSERT_NE(mutant.bug, Bug::kNone) << c.name << ": " << result.reason;
      mutant.caught_by = c.name;
      mutant.reason = result.reason;
    }
  }
  for (const Mutant& mutant : mutants) {
    if (mutant.bug == Bug::kNone) continue;
    EXPECT_FALSE(mutant.caught_by.empty()) << bug_name(mutant.bug) << " passes every case";
    std::printf("%-28s %s\n%-28s   %s\n", bug_name(mutant.bug), mutant.caught_by.c_str(), "",
                mutant.reason.c_str());
  }
}

TEST(Mutants, NamesAreUnique) {
  std::map<std::string, int> count;
  for (const Bug bug : all_bugs()) EXPECT_EQ(++count[bug_name(bug)], 1) << bug_name(bug);
  EXPECT_GE(count.size(), 13U);
}

}  // namespace
}  // namespace quire::conformance
