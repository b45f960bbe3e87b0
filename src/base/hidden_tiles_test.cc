// SPDX-License-Identifier: Apache-2.0
#include "base/hidden_tiles.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/cpu_features.h"

namespace quire {
namespace {

TEST(HiddenTiles, LimitOnednnOnlyWhereTheyAreHidden) {
  const bool did = keep_onednn_from_hidden_tiles();
  const bool is_limited =
      std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr || std::getenv("DNNL_MAX_CPU_ISA") != nullptr;
  const bool are_hidden = detect_cpu_features().amx_sizes_hidden;
  EXPECT_TRUE(is_limited || !are_hidden);
  EXPECT_TRUE(are_hidden || !did);
  EXPECT_EQ(keep_onednn_from_hidden_tiles(), did);
}

}  // namespace
}  // namespace quire
