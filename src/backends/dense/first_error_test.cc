// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "backends/dense/dense_backend.h"
#include "base/check.h"

namespace quire::dense {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <class F>
Error rethrown(const F& raise) {
  FirstError first;
  try {
    raise();
  } catch (...) {
    first.keep_current();
  }
  try {
    throw std::runtime_error("later");
  } catch (...) {
    first.keep_current();
  }
  BackendInfo info;
  info.name = "peer";
  info.version = "3.2";
  try {
    first.rethrow(info, AttentionSpec{});
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInvalidArgument, "nothing was thrown");
}

TEST(FirstError, KeepsTheCodeAndNamesTheConfiguration) {
  const Error memory = rethrown([] { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(memory.what(), HasSubstr("peer 3.2 failed at "));
  const Error ours = rethrown([] { fail(ErrorCode::kUnsupported, "no fused kernel"); });
  EXPECT_EQ(ours.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(ours.what(), AllOf(HasSubstr("no fused kernel"), Not(HasSubstr("later"))));
  EXPECT_EQ(rethrown([] { throw std::runtime_error("x"); }).code(), ErrorCode::kDevice);
  EXPECT_EQ(rethrown([] { throw 7; }).code(), ErrorCode::kDevice);
  EXPECT_NO_THROW(FirstError().rethrow({}, AttentionSpec{}));
}

}  // namespace
}  // namespace quire::dense
