// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>

#include "base/host_memory.h"
#include "kv/recording_memory.h"
#include "quire/error.h"
#include "quire/prepared_batch.h"

namespace quire {
namespace {

TEST(WorkspaceBuffer, OwnsHostAndDeviceMemory) {
  RecordingMemory memory;
  {
    const WorkspaceBuffer buffer(memory, {1000, 2000});
    EXPECT_EQ(memory.host_live.count(buffer.view().host), 1U);
    EXPECT_EQ(memory.device_live.count(buffer.view().device), 1U);
    EXPECT_EQ(buffer.view().size.host_bytes, 1000);
    EXPECT_EQ(buffer.view().size.device_bytes, 2000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.view().host) % 64, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.view().device) % 64, 0U);
  }
  EXPECT_TRUE(memory.host_live.empty());
  EXPECT_TRUE(memory.device_live.empty());
  EXPECT_EQ(memory.num_bad_frees, 0);
}

TEST(WorkspaceBuffer, NothingAskedForIsNothingAllocated) {
  RecordingMemory memory;
  {
    const WorkspaceBuffer buffer(memory, {0, 0});
    EXPECT_EQ(buffer.view().host, nullptr);
    EXPECT_EQ(buffer.view().device, nullptr);
    EXPECT_EQ(memory.last_bytes, -1);
  }
  EXPECT_EQ(memory.num_bad_frees, 0);
}

TEST(WorkspaceBuffer, AFailureLeavesNothingBehind) {
  RecordingMemory memory;
  memory.fail_device = true;
  EXPECT_THROW(WorkspaceBuffer(memory, {10, 20}), Error);
  EXPECT_TRUE(memory.host_live.empty());
  EXPECT_THROW(WorkspaceBuffer(memory, {0, 20}), Error);
  memory.fail_host = true;
  EXPECT_THROW(WorkspaceBuffer(memory, {10, 0}), Error);
  EXPECT_THROW(WorkspaceBuffer(host_memory(), {-1, 0}), Error);
  EXPECT_THROW(WorkspaceBuffer(host_memory(), {0, -1}), Error);
  EXPECT_EQ(memory.num_bad_frees, 0);
}

}  // namespace
}  // namespace quire
