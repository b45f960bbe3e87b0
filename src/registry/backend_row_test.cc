// SPDX-License-Identifier: Apache-2.0
#include "registry/backend_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Found, and of no use all the same: a device that is full, say.
TEST(BackendRow, WhatCannotBeMadeIsNotAvailable) {
  const BackendEntry entry{
      .name = "full",
      .summary = "",
      .automatic = false,
      .plugin = false,
      .probe = [] { return Availability{.available = true, .version = "1", .reasons = {}}; },
      .isa_levels = [] { return std::vector<std::string>{"one"}; },
      .make = [](const BackendOptions&) -> std::unique_ptr<AttentionBackend> {
        fail(ErrorCode::kOutOfMemory, "the device has no memory left");
      }};
  const BackendRow row = describe_backend(entry);
  EXPECT_FALSE(row.availability.available);
  EXPECT_THAT(row.availability.reasons, ElementsAre("the device has no memory left"));
  EXPECT_THAT(row.levels, IsEmpty());
  EXPECT_THAT(row.features, IsEmpty());
}

TEST(BackendRow, OneThatIsThereHasAllFeaturesAsked) {
  for (const BackendEntry& entry : backend_table()) {
    if (entry.plugin) continue;
    const BackendRow row = describe_backend(entry);
    EXPECT_TRUE(row.availability.available) << entry.name;
    EXPECT_EQ(row.info.name, std::string(entry.name));
    EXPECT_EQ(row.features.size(), feature_probes().size());
  }
}

}  // namespace
}  // namespace quire
