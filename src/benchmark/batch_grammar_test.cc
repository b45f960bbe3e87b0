// SPDX-License-Identifier: Apache-2.0
#include "benchmark/batch_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quire/error.h"

namespace quire::benchmark {
namespace {

using conformance::SequenceShape;
using ::testing::HasSubstr;

TEST(BatchGrammar, OneGroup) {
  const std::vector<SequenceShape> batch = parse_batch("q4@4096*3");
  ASSERT_EQ(batch.size(), 3U);
  for (const SequenceShape& sequence : batch) {
    EXPECT_EQ(sequence.q_len, 4);
    EXPECT_EQ(sequence.kv_len, 4096);
  }
}

TEST(BatchGrammar, TheCountIsOneUnlessGiven) {
  ASSERT_EQ(parse_batch("q1@7").size(), 1U);
}

TEST(BatchGrammar, GroupsFollowEachOther) {
  const std::vector<SequenceShape> batch = parse_batch("q512@4096*1,q1@2048*31");
  ASSERT_EQ(batch.size(), 32U);
  EXPECT_EQ(batch.front().q_len, 512);
  EXPECT_EQ(batch[1].q_len, 1);
  EXPECT_EQ(batch.back().kv_len, 2048);
}

TEST(BatchGrammar, TextAndBack) {
  for (const char* text : {"q1@1", "q512@4096,q1@2048*31", "q2@2*2,q1@1,q2@2"}) {
    EXPECT_EQ(batch_text(parse_batch(text)), text);
  }
}

class BadBatch : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(BadBatch, IsRefusedByName) {
  const auto [text, what] = GetParam();
  try {
    static_cast<void>(parse_batch(text));
    FAIL() << text << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(what)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadBatch,
    ::testing::Values(std::pair{"", "expected 'q' at ''"}, std::pair{"1@2", "expected 'q'"},
                      std::pair{"q1@2,", "batch '': expected 'q'"},
                      std::pair{"q@2", "expected q_len at '@2'"}, std::pair{"q1", "expected '@'"},
                      std::pair{"q1@", "expected kv_len"},
                      std::pair{"q0@2", "q_len is not in [1, "},
                      std::pair{"q-1@2", "q_len is not in [1, "},
                      std::pair{"q1@99999999999999999999", "kv_len is not in [1, "},
                      std::pair{"q1@2*0", "the count is not in [1, "},
                      std::pair{"q1@2*9999999", "the count is not in [1, "},
                      std::pair{"q1@2x3", "nothing more may follow at 'x3'"},
                      std::pair{"q1@2*3 ", "nothing more may follow"},
                      std::pair{"q3@2", "kv_len, new tokens included, is below q_len"},
                      std::pair{"q1@2,q5@4*2", "batch 'q5@4*2'"}));

}  // namespace
}  // namespace quire::benchmark
