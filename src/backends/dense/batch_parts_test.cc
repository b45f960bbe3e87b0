// SPDX-License-Identifier: Apache-2.0
#include "backends/dense/batch_parts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace quire::dense {
namespace {

TEST(BatchParts, CoverEveryQueryOnceInOrder) {
  const std::vector<std::int32_t> begins = {0, 7, 7, 9, 20};
  const std::vector<std::int32_t> ends = {7, 7, 8, 20, 24};
  const std::vector<std::int32_t> lens = {7, 30, 5, 11, 9};
  BatchView batch;
  batch.queries = {begins, ends};
  batch.kv.lens = lens;
  const BatchBounds bounds{.max_sequences = 6, .max_tokens = 30, .max_kv_len = 30};
  std::vector<std::int64_t> memory(static_cast<std::size_t>(BatchParts::size_bytes(bounds)) / 8);
  BatchParts parts(memory.data(), bounds);
  EXPECT_EQ(parts.size(), 0);
  parts.cut(batch, [](const SequenceView& s) { return s.kv_len == 11 ? 4 : 3; });
  ASSERT_EQ(parts.size(), 3 + 0 + 1 + 3 + 2);
  std::int64_t index = 0;
  for (std::int64_t s = 0; s < 5; ++s) {
    const std::int64_t q_len =
        ends[static_cast<std::size_t>(s)] - begins[static_cast<std::size_t>(s)];
    const std::int64_t step = s == 3 ? 4 : 3;
    for (std::int64_t i = 0; i < q_len; i += step, ++index) {
      const QueryPart part = parts.at(batch, index);
      EXPECT_EQ(part.sequence, s);
      EXPECT_EQ(part.begin, i);
      EXPECT_EQ(part.end, std::min(i + step, q_len));
    }
  }
  EXPECT_EQ(index, parts.size());
  BatchView empty;
  parts.cut(empty, [](const SequenceView&) { return 1; });
  EXPECT_EQ(parts.size(), 0);
}

}  // namespace
}  // namespace quire::dense
