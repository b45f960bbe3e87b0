// SPDX-License-Identifier: Apache-2.0
#include "base/host_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

std::uintptr_t address(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

// The code and the message of the Error that f throws.
template <class F>
std::pair<ErrorCode, std::string> error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kOk, "no error"};
}

TEST(HostMemory, IsHostAndOneObject) {
  EXPECT_TRUE(host_memory().device().is_host());
  EXPECT_EQ(&host_memory(), &host_memory());
}

TEST(HostMemory, EveryByteIsUsableAndAligned) {
  const std::int64_t sizes[] = {0,
                                1,
                                63,
                                64,
                                65,
                                4095,
                                1 << 20,
                                kMappedFromBytes - 1,
                                kMappedFromBytes,
                                kMappedFromBytes + 1,
                                9 << 20};
  for (const PageHint hint : {PageHint::kDefault, PageHint::kHuge}) {
    for (const std::int64_t size : sizes) {
      void* data = host_memory().allocate(size, hint);
      ASSERT_NE(data, nullptr) << size;
      EXPECT_EQ(address(data) % 64, 0U) << size;
      if (hint == PageHint::kHuge && size >= kMappedFromBytes) {
        EXPECT_EQ(address(data) % (2U << 20), 0U) << size;
      }
      std::memset(data, 0x5a, static_cast<std::size_t>(size));
      host_memory().free(data);
    }
  }
  void* host = host_memory().allocate_host(100);
  EXPECT_EQ(address(host) % 64, 0U);
  host_memory().free_host(host);
  host_memory().free(nullptr);
  host_memory().free_host(nullptr);
}

TEST(HostMemory, AllocationsDoNotDisturbEachOther) {
  std::vector<std::byte*> all;
  for (int i = 0; i < 40; ++i) {
    const std::int64_t size = i % 10 == 9 ? kMappedFromBytes + i : 100 + i;
    auto* data = static_cast<std::byte*>(host_memory().allocate(size));
    std::memset(data, i, static_cast<std::size_t>(size));
    all.push_back(data);
  }
  for (int i = 0; i < 40; i += 2) host_memory().free(all[static_cast<std::size_t>(i)]);
  for (int i = 1; i < 40; i += 2) {
    const std::byte* data = all[static_cast<std::size_t>(i)];
    const std::int64_t size = i % 10 == 9 ? kMappedFromBytes + i : 100 + i;
    EXPECT_EQ(data[0], static_cast<std::byte>(i));
    EXPECT_EQ(data[size - 1], static_cast<std::byte>(i));
    host_memory().free(all[static_cast<std::size_t>(i)]);
  }
}

TEST(HostMemory, LargeMemoryTakesPagesOnlyWhenTouched) {
  const std::int64_t size = std::int64_t{64} << 30;  // more than most machines have
  const std::int64_t before = resident_bytes();
  auto* data = static_cast<unsigned char*>(host_memory().allocate(size));
  data[0] = 1;
  data[size / 2] = 2;
  data[size - 1] = 3;
  EXPECT_EQ(data[size / 4], 0);
  EXPECT_EQ(data[size / 2], 2);
  EXPECT_LT(resident_bytes() - before, std::int64_t{64} << 20);
  host_memory().free(data);
}

TEST(HostMemory, FreeReturnsAddressSpace) {
  // 256 TiB in all, twice what a process may map: succeeds only if each is given back.
  for (int i = 0; i < 1024; ++i) {
    void* data = host_memory().allocate(std::int64_t{256} << 30);
    host_memory().free(data);
  }
}

TEST(HostMemory, BadSizesNameTheBytes) {
  const auto negative = error_of([] { host_memory().allocate(-5); });
  EXPECT_EQ(negative.first, ErrorCode::kInvalidArgument);
  EXPECT_NE(negative.second.find("-5"), std::string::npos) << negative.second;

  for (const std::int64_t size :
       {std::int64_t{1} << 60, std::numeric_limits<std::int64_t>::max() - (1 << 20),
        std::numeric_limits<std::int64_t>::max()}) {
    for (const PageHint hint : {PageHint::kDefault, PageHint::kHuge}) {
      const auto error = error_of([&] { host_memory().allocate(size, hint); });
      EXPECT_EQ(error.first, ErrorCode::kOutOfMemory) << size;
      EXPECT_NE(error.second.find(std::to_string(size)), std::string::npos) << error.second;
    }
  }
  EXPECT_EQ(error_of([] { host_memory().allocate_host(-1); }).first, ErrorCode::kInvalidArgument);
}

TEST(HostMemory, CopiesAndFills) {
  const std::vector<char> host = {1, 2, 3, 4};
  auto* data = static_cast<char*>(host_memory().allocate(8));
  host_memory().fill(data, 0xff, 8, {});
  host_memory().copy_to_device(data + 1, host.data(), 4, {});
  std::vector<char> back(8);
  host_memory().copy_to_host(back.data(), data, 8, {});
  EXPECT_EQ(back, (std::vector<char>{-1, 1, 2, 3, 4, -1, -1, -1}));
  host_memory().copy_to_device(nullptr, nullptr, 0, {});
  host_memory().fill(nullptr, 0, 0, {});
  EXPECT_EQ(error_of([&] { host_memory().fill(data, 0, -1, {}); }).first,
            ErrorCode::kInvalidArgument);
  host_memory().free(data);
}

TEST(HostMemory, TakesTheDefaultStreamAlone) {
  const Stream stream = host_memory().create_stream();
  EXPECT_EQ(stream, Stream{});
  host_memory().synchronize(stream);
  host_memory().destroy_stream(stream);
  int other = 0;
  char byte = 0;
  const Stream bad{&other};
  EXPECT_THROW(host_memory().synchronize(bad), Error);
  EXPECT_THROW(host_memory().fill(&byte, 1, 1, bad), Error);
  EXPECT_THROW(host_memory().copy_to_host(&byte, &other, 1, bad), Error);
  EXPECT_EQ(byte, 0);
}

TEST(HostMemory, ThreadsFreeWhatOthersAllocated) {
  std::vector<void*> data(64);
  std::thread maker([&] {
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = host_memory().allocate(i % 8 == 0 ? kMappedFromBytes : 1000);
      std::memset(data[i], 1, 1000);
    }
  });
  maker.join();
  std::thread taker([&] {
    for (void* pointer : data) host_memory().free(pointer);
  });
  taker.join();
}

}  // namespace
}  // namespace quire
