// SPDX-License-Identifier: Apache-2.0
// Breaks KV management on purpose, one thing at a time, and expects the model test to notice.
//
// Compiled with QUIRE_KV_MUTANTS from the sources of src/kv/, not linked to the library.
// tests/model/MUTANTS.md lists the mutants and the checks that find them.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "kv/mutation.h"
#include "model/block_manager_harness.h"

namespace quire::test {
namespace {

struct Found {
  std::int64_t num_operations = 0;
  std::string config;
  std::string check;  // empty: nothing was found
};

// As the long runs of the model test do, until something is found.
Found search(std::int64_t max_operations) {
  constexpr int kOperationsPerLife = 400;
  const std::vector<HarnessConfig> configs = harness_configs();
  std::mt19937 random(1);
  Found found;
  for (std::size_t life = 0; found.num_operations < max_operations; ++life) {
    const HarnessConfig& config = configs[life % configs.size()];
    BlockManagerHarness harness(config);
    for (int i = 0; i < kOperationsPerLife; ++i) {
      ++found.num_operations;
      try {
        harness.run(static_cast<std::uint32_t>(random()));
      } catch (const std::exception& error) {
        found.config = config.name;
        found.check = error.what();
        return found;
      }
    }
  }
  return found;
}

struct NamedMutant {
  const char* name;
  Mutant mutant;
};

class KvMutants : public testing::TestWithParam<NamedMutant> {
 protected:
  void SetUp() override { active_mutant = GetParam().mutant; }
  void TearDown() override { active_mutant = Mutant::kNone; }
};

TEST_P(KvMutants, IsCaught) {
  const Found found = search(100'000);
  EXPECT_FALSE(found.check.empty())
      << GetParam().name << " survived " << found.num_operations << " operations";
  RecordProperty("operations", std::to_string(found.num_operations));
  RecordProperty("config", found.config);
  RecordProperty("check", found.check);
  std::printf("%-22s %6lld operations, %s: %s\n", GetParam().name,
              static_cast<long long>(found.num_operations), found.config.c_str(),
              found.check.c_str());
}

INSTANTIATE_TEST_SUITE_P(
    All, KvMutants,
    testing::Values(NamedMutant{"ForkKeepsCount", Mutant::kForkKeepsCount},
                    NamedMutant{"RollbackLeaks", Mutant::kRollbackLeaks},
                    NamedMutant{"FreesFrontToBack", Mutant::kFreesFrontToBack},
                    NamedMutant{"EvictsNewest", Mutant::kEvictsNewest},
                    NamedMutant{"UnpinnedGoesLast", Mutant::kUnpinnedGoesLast},
                    NamedMutant{"KeepsKeyOfEvicted", Mutant::kKeepsKeyOfEvicted},
                    NamedMutant{"KeepsTwoUnreferenced", Mutant::kKeepsTwoUnreferenced},
                    NamedMutant{"WritesSharedBlock", Mutant::kWritesSharedBlock},
                    NamedMutant{"ForgetsCopy", Mutant::kForgetsCopy},
                    NamedMutant{"ChainsCopies", Mutant::kChainsCopies},
                    NamedMutant{"UnpinsOnTake", Mutant::kUnpinsOnTake},
                    NamedMutant{"IgnoresSalt", Mutant::kIgnoresSalt},
                    NamedMutant{"IgnoresAdapter", Mutant::kIgnoresAdapter},
                    NamedMutant{"IgnoresExtraKeys", Mutant::kIgnoresExtraKeys},
                    NamedMutant{"IgnoresParent", Mutant::kIgnoresParent},
                    NamedMutant{"SkipsTokenCompare", Mutant::kSkipsTokenCompare},
                    NamedMutant{"MatchesWholePrompt", Mutant::kMatchesWholePrompt},
                    NamedMutant{"ReleasesWindowEarly", Mutant::kReleasesWindowEarly},
                    NamedMutant{"IgnoresWatermark", Mutant::kIgnoresWatermark},
                    NamedMutant{"SwapsInReverse", Mutant::kSwapsInReverse},
                    NamedMutant{"ResetKeepsLive", Mutant::kResetKeepsLive}),
    [](const auto& mutant) { return mutant.param.name; });

TEST(KvMutants, UnbrokenCodePasses) {
  const Found found = search(9 * 400);
  EXPECT_EQ(found.check, "") << found.config;
}

}  // namespace
}  // namespace quire::test
