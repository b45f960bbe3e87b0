// SPDX-License-Identifier: Apache-2.0
// The API carries a device: the suite passes on one whose memory is apart and whose work runs
// later, with metadata on the host and on the device, and what goes wrong there is reported.
#include "fake_device/fake_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "conformance/case_list.h"
#include "conformance/run.h"
#include "fake_device/fake_memory.h"

namespace quire::testing {
namespace {

TEST(FakeDevice, PassesTheSmokeSuite) {
  const std::unique_ptr<AttentionBackend> device = make_fake_device();
  conformance::RunSummary summary;
  for (const conformance::Case& c :
       conformance::select(conformance::all_cases(), conformance::Suite::kSmoke)) {
    const conformance::CaseResult result = conformance::run_case(*device, c);
    summary.add(result);
    EXPECT_EQ(result.status, conformance::CaseStatus::kPassed) << c.name << ": " << result.reason;
  }
  EXPECT_GE(summary.num_passed, 40);
}

TEST(FakeDevice, AddressesAreNotOfTheHost) {
  FakeMemory memory;
  void* data = memory.allocate(64, PageHint::kDefault);
  void* host = memory.to_host(data);
  EXPECT_NE(host, data);
  EXPECT_THROW(memory.to_host(host), Error);
  EXPECT_THROW(memory.to_host(static_cast<char*>(data) + 65), Error);
  memory.free(data);
  EXPECT_THROW(memory.to_host(data), Error);
}

TEST(FakeDevice, WorkRunsLaterAndInOrder) {
  FakeMemory memory;
  const Stream stream = memory.create_stream();
  std::atomic<bool> open{false};
  std::vector<int> order;
  memory.stream(stream).enqueue([&] {
    while (!open) std::this_thread::yield();
    order.push_back(1);
  });
  memory.stream(stream).enqueue([&] { order.push_back(2); });
  open = true;  // nothing of the above could have finished before this line
  memory.synchronize(stream);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  memory.destroy_stream(stream);
}

// One decode of one sequence with 4 keys, all metadata in device memory.
class DeviceMetadata : public ::testing::Test {
 protected:
  DeviceMetadata() {
    spec_.num_q_heads = spec_.num_kv_heads = 1;
    spec_.head_dim = spec_.value_dim = 16;
    spec_.q_dtype = spec_.out_dtype = spec_.kv.dtype = DType::kF32;
    spec_.kv.block_size = 4;
    prepared_ = device_->make_prepared(
        spec_, kBounds,
        workspace_.emplace(device_->memory(), device_->workspace(spec_, kBounds)).view());
    cache_.emplace(device_->memory(), spec_, plain_layout(spec_),
                   KvCache::Options{.num_layers = 1, .num_blocks = 2});
    q_ = to_device(std::vector<float>(16, 1.0F));
    out_ = to_device(std::vector<float>(16, kUntouched));
  }
  ~DeviceMetadata() override {
    device_->memory().synchronize({});
    for (void* data : owned_) device_->memory().free(data);
  }

  template <class T>
  T* to_device(const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    auto* data = static_cast<T*>(device_->memory().allocate(bytes));
    owned_.push_back(data);
    device_->memory().copy_to_device(data, values.data(), bytes, {});
    device_->memory().synchronize({});
    return data;
  }

  BatchView batch(std::int32_t kv_len, std::int32_t block) {
    const Device where = device_->memory().device();
    BatchView view;
    view.queries = QueryRanges::packed({to_device(std::vector<std::int32_t>{0, 1}), 2, where});
    view.kv.lens = {to_device(std::vector<std::int32_t>{kv_len}), 1, where};
    view.kv.blocks =
        BlockTables::padded({to_device(std::vector<std::int32_t>{block}), 1, where}, 1);
    return view;
  }

  float run(const BatchView& view) {
    const Device where = device_->memory().device();
    device_->prepare(*prepared_, view);
    device_->attend(*prepared_, {}, TensorView(q_, DType::kF32, {1, 1, 16}, where),
                    cache_->layer(0),
                    {MutableTensorView(out_, DType::kF32, {1, 1, 16}, where), {}});
    float first = 0;
    device_->memory().copy_to_host(&first, out_, sizeof(first), {});
    device_->memory().synchronize({});
    return first;
  }

  static constexpr float kUntouched = -7.0F;
  static constexpr BatchBounds kBounds{
      .max_sequences = 1, .max_tokens = 1, .max_kv_len = 4, .max_total_kv_len = 4};
  std::unique_ptr<AttentionBackend> device_ = make_fake_device();
  AttentionSpec spec_;
  std::optional<WorkspaceBuffer> workspace_;
  std::unique_ptr<PreparedBatch> prepared_;
  std::optional<KvCache> cache_;
  std::vector<void*> owned_;
  float* q_ = nullptr;
  float* out_ = nullptr;
};

TEST_F(DeviceMetadata, IsTakenAsItIs) {
  const KvCacheView& layer = cache_->layer(0);
  device_->memory().fill(layer.k, 0, layer.num_blocks * layer.k_strides.block * 4, {});
  EXPECT_EQ(run(batch(4, 1)), 0.0F);
  EXPECT_TRUE(device_->poll(*prepared_).ok());
}

TEST_F(DeviceMetadata, ErrorsComeOutOfPollAndNothingIsWritten) {
  EXPECT_EQ(run(batch(5, 1)), kUntouched);  // more keys than the bounds declare
  Status status = device_->poll(*prepared_);
  EXPECT_EQ(status.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message.find("5"), std::string::npos) << status.message;
  EXPECT_TRUE(device_->poll(*prepared_).ok()) << "polling clears the error";

  EXPECT_EQ(run(batch(4, 2)), kUntouched);  // the cache has blocks 0 and 1
  status = device_->poll(*prepared_);
  EXPECT_EQ(status.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message.find("2"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace quire::testing
