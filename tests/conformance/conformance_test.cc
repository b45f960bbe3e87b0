// SPDX-License-Identifier: Apache-2.0
// The conformance suite on every backend that is built in, at every level that this machine has,
// and on the fake device. QUIRE_SUITE is smoke (default), standard or full; QUIRE_BACKEND names one
// backend instead, which may be a plug-in.
//
// A test is one case on one backend: decode.head_dim/128@cpu:avx2. Cases that a backend refuses are
// skipped with its reasons, and so are backends that cannot run here.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "conformance/case_list.h"
#include "conformance/run.h"
#include "fake_device/fake_device.h"
#include "quire/registry.h"

namespace quire::conformance {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Suite suite_of_environment() {
  const std::string name = environment("QUIRE_SUITE");
  for (const Suite suite : {Suite::kSmoke, Suite::kStandard, Suite::kFull}) {
    if (name == suite_name(suite)) return suite;
  }
  if (name.empty()) return Suite::kSmoke;
  throw std::invalid_argument("QUIRE_SUITE is not smoke, standard or full: " + name);
}

// One backend at one level, made when its first case runs.
struct Subject {
  std::string name;  // "cpu:avx2"
  std::function<std::unique_ptr<AttentionBackend>(int num_threads)> make;
  std::unique_ptr<AttentionBackend> backend;

  AttentionBackend& get() {
    if (backend == nullptr) backend = make(0);
    return *backend;
  }
};

// Tests of one case run one after the other, so its inputs and exact result are built once.
const CaseRunner& runner_of(const Case& c) {
  static std::string name;
  static std::unique_ptr<CaseRunner> runner;
  if (name != c.name) {
    runner = std::make_unique<CaseRunner>(c);
    name = c.name;
  }
  return *runner;
}

class CaseTest : public ::testing::Test {
 public:
  CaseTest(const Case& c, Subject& subject) : case_(c), subject_(subject) {}

  void TestBody() override {
    const CaseResult result = runner_of(case_).run(subject_.get());
    if (result.status == CaseStatus::kSkipped) GTEST_SKIP() << result.reason;
    EXPECT_EQ(result.status, CaseStatus::kPassed) << result.reason;
  }

 private:
  const Case& case_;
  Subject& subject_;
};

class UnavailableTest : public ::testing::Test {
 public:
  explicit UnavailableTest(std::string reasons) : reasons_(std::move(reasons)) {}
  void TestBody() override { GTEST_SKIP() << reasons_; }

 private:
  std::string reasons_;
};

// Equal sequences give equal bits however many threads run.
class ThreadsTest : public ::testing::Test {
 public:
  ThreadsTest(const std::vector<Case>& cases, const Subject& subject)
      : cases_(cases), subject_(subject) {}

  void TestBody() override {
    std::vector<std::unique_ptr<AttentionBackend>> backends;
    for (const int num_threads : {1, 2, 3, 8}) backends.push_back(subject_.make(num_threads));
    if (!backends[0]->info().batch_invariant) GTEST_SKIP() << "does not promise batch invariance";
    int num_cases = 0;
    for (const Case& c : cases_) {
      if (c.check != Check::kInvariance || c.suite == Suite::kFull) continue;
      ++num_cases;
      const CaseRunner runner(c);
      std::vector<std::uint64_t> digests;
      for (const auto& backend : backends) {
        const CaseResult result = runner.run(*backend);
        EXPECT_NE(result.status, CaseStatus::kFailed) << c.name << ": " << result.reason;
        digests.push_back(result.digest);
      }
      EXPECT_EQ(digests, std::vector<std::uint64_t>(digests.size(), digests[0])) << c.name;
    }
    EXPECT_GT(num_cases, 0);
  }

 private:
  const std::vector<Case>& cases_;
  const Subject& subject_;
};

std::vector<Subject> make_subjects() {
  const std::string only = environment("QUIRE_BACKEND");
  std::vector<Subject> subjects;
  for (const BackendEntry& entry : backend_table()) {
    if (only.empty() ? entry.plugin : only != entry.name) continue;
    const Availability availability = entry.probe();
    if (!availability.available) {
      std::string reasons;
      for (const std::string& reason : availability.reasons) {
        reasons += (reasons.empty() ? "" : "; ") + reason;
      }
      ::testing::RegisterTest(
          "backends", entry.name, nullptr, nullptr, __FILE__, __LINE__,
          [reasons]() -> ::testing::Test* { return new UnavailableTest(reasons); });
      continue;
    }
    std::vector<std::string> levels = entry.isa_levels();
    if (levels.empty()) levels.emplace_back();
    for (const std::string& level : levels) {
      const std::string name = level.empty() ? entry.name : std::string(entry.name) + ":" + level;
      const auto make = [&entry, level](int num_threads) {
        return entry.make({.num_threads = num_threads, .isa = level});
      };
      subjects.push_back({name, make, nullptr});
    }
  }
  if (only.empty()) {
    subjects.push_back({"fake_device", [](int) { return testing::make_fake_device(); }, nullptr});
  }
  return subjects;
}

void register_tests(const std::vector<Case>& cases, std::vector<Subject>& subjects) {
  for (const Case& c : cases) {
    const std::size_t slash = c.name.find('/');
    const std::string family = c.name.substr(0, slash);
    for (Subject& subject : subjects) {
      const std::string name = c.name.substr(slash + 1) + "@" + subject.name;
      ::testing::RegisterTest(
          family.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
          [&c, &subject]() -> ::testing::Test* { return new CaseTest(c, subject); });
    }
  }
  for (Subject& subject : subjects) {
    ::testing::RegisterTest(
        "threads", subject.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
        [&cases, &subject]() -> ::testing::Test* { return new ThreadsTest(cases, subject); });
  }
}

}  // namespace
}  // namespace quire::conformance

int main(int argc, char** argv) {
  using namespace quire::conformance;
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<Case> cases = select(all_cases(), suite_of_environment());
  std::vector<Subject> subjects = make_subjects();
  register_tests(cases, subjects);
  return RUN_ALL_TESTS();
}
