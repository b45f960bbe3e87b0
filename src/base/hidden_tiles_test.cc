// SPDX-License-Identifier: Apache-2.0
#include "base/hidden_tiles.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/cpu_features.h"

namespace quire {
namespace {

std::string limit() {
  const char* value = std::getenv("ONEDNN_MAX_CPU_ISA");
  return value == nullptr ? "" : value;
}

TEST(HiddenTiles, LimitOnednnOnlyWhereTheyAreHidden) {
  const std::string before = limit();
  const bool did = keep_onednn_from_hidden_tiles();
  EXPECT_EQ(did, detect_cpu_features().amx_sizes_hidden && before.empty());
  EXPECT_EQ(limit(), did ? "AVX512_CORE_BF16" : before);
  EXPECT_EQ(keep_onednn_from_hidden_tiles(), did);
}

}  // namespace
}  // namespace quire
