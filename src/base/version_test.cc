// SPDX-License-Identifier: Apache-2.0
#include "quire/version.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

TEST(Version, LinkedLibraryMatchesTheHeader) {
  EXPECT_EQ(std::string(version()), std::to_string(QUIRE_VERSION_MAJOR) + "." +
                                        std::to_string(QUIRE_VERSION_MINOR) + "." +
                                        std::to_string(QUIRE_VERSION_PATCH));
}

}  // namespace
}  // namespace quire
