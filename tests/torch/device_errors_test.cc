// SPDX-License-Identifier: Apache-2.0
// What goes wrong on the device path of the backend `torch`: errors that name the configuration,
// those that come late, and memory of the host that a stream still writes. On tensors of the host.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/torch/device_backend.h"
#include "backends/torch/device_plan.h"
#include "backends/torch/guarded.h"
#include "backends/torch/sdpa.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "registry/dense_stages.h"

namespace quire::torch_sdpa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kOk, "nothing was thrown");
}

TEST(TorchErrors, AllThatIsThrownIsOurs) {
  const auto thrown = [](const std::function<void()>& f) {
    return error_of([&] {
      guarded(
          "attend", [] { return std::string("heads 3/2"); }, f);
    });
  };
  const Error of_torch = thrown([] { TORCH_CHECK(false, "bad shape"); });
  EXPECT_EQ(of_torch.code(), ErrorCode::kDevice);
  EXPECT_THAT(of_torch.what(),
              AllOf(HasSubstr(std::string("torch ") + version() + " failed at heads 3/2: attend: "),
                    HasSubstr("bad shape")));
  const Error of_memory = thrown([] { throw std::bad_alloc(); });
  EXPECT_EQ(of_memory.code(), ErrorCode::kOutOfMemory);
  const Error of_torch_memory =
      thrown([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "no 3 GB"); });
  EXPECT_EQ(of_torch_memory.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(of_torch_memory.what(), HasSubstr("no 3 GB"));
  const Error of_library = thrown([] { throw std::runtime_error("the driver is gone"); });
  EXPECT_EQ(of_library.code(), ErrorCode::kDevice);
  EXPECT_THAT(of_library.what(), AllOf(HasSubstr("heads 3/2"), HasSubstr("the driver is gone")));
  EXPECT_EQ(thrown([] { throw 7; }).code(), ErrorCode::kDevice);
  const Error ours = thrown([] { fail(ErrorCode::kUnsupported, "as it was"); });
  EXPECT_EQ(ours.code(), ErrorCode::kUnsupported);
  EXPECT_STREQ(ours.what(), "as it was");
}

TEST(TorchErrors, OtherVersionsAreNamed) {
  EXPECT_EQ(version_mismatch(), "");
  EXPECT_EQ(version_mismatch("2.15.0", "2.15.0+cpu"), "");
  EXPECT_EQ(version_mismatch("2.15.0", "2.15.0a0+git1"), "");
  EXPECT_EQ(version_mismatch("2.15.0", "2.11.0"),
            "built for torch 2.15.0, the library that was loaded is torch 2.11.0");
}

TEST(TorchErrors, BoundsOfRaggedCallsHave32Bits) {
  EXPECT_EQ(ragged_bound(2147483647, "keys"), 2147483647);
  const Error error = error_of([] { static_cast<void>(ragged_bound(2147483648, "keys")); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("2147483647 keys"), HasSubstr("2147483648")));
}

// Memory of the host that tells what was done with it.
class WatchedMemory final : public PolledMemory {
 public:
  explicit WatchedMemory(std::vector<std::string>& log) : log_(log) {}

  Device device() const noexcept override { return {}; }
  void* allocate(std::int64_t size_bytes, PageHint hint) override {
    return host_memory().allocate(size_bytes, hint);
  }
  void free(void* data) noexcept override { host_memory().free(data); }
  void* allocate_host(std::int64_t size_bytes) override {
    return host_memory().allocate_host(size_bytes);
  }
  void free_host(void* data) noexcept override { host_memory().free_host(data); }
  void copy_to_device(void* to, const void* from, std::int64_t size_bytes, Stream) override {
    host_memory().copy_to_device(to, from, size_bytes, {});
  }
  void copy_to_host(void* to, const void* from, std::int64_t size_bytes, Stream) override {
    host_memory().copy_to_host(to, from, size_bytes, {});
  }
  void fill(void* data, unsigned char byte, std::int64_t size_bytes, Stream) override {
    host_memory().fill(data, byte, size_bytes, {});
  }
  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {
    log_.emplace_back("synchronize");
    if (on_synchronize) on_synchronize();
  }
  Status poll(Stream) override {
    log_.emplace_back("poll");
    return {ErrorCode::kDevice, "late"};
  }

  std::function<void()> on_synchronize;

 private:
  std::vector<std::string>& log_;
};

AttentionSpec small_spec() {
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.head_dim = spec.value_dim = 8;
  spec.q_dtype = spec.out_dtype = spec.kv.dtype = DType::kF32;
  spec.kv.block_size = 4;
  return spec;
}

// One sequence of 3 keys and 1 query, prepared.
struct SmallBatch {
  explicit SmallBatch(AttentionBackend& backend)
      : workspace(backend.memory(), backend.workspace(small_spec(), bounds)),
        prepared(backend.make_prepared(small_spec(), bounds, workspace.view())) {
    BatchView batch;
    batch.queries = {begins, ends};
    batch.kv.lens = lens;
    batch.kv.blocks = BlockTables::padded(table, 1);
    backend.prepare(*prepared, batch);
  }

  std::vector<std::int32_t> begins = {0}, ends = {1}, lens = {3}, table = {0};
  BatchBounds bounds{1, 1, 3, 3};
  WorkspaceBuffer workspace;
  std::unique_ptr<PreparedBatch> prepared;
};

TEST(TorchDeviceErrors, NameTheConfiguration) {
  const std::unique_ptr<AttentionBackend> backend = make_device_backend_on_host();
  const SmallBatch batch(*backend);
  auto* const stages = dynamic_cast<DenseStages*>(backend.get());
  ASSERT_NE(stages, nullptr);
  const auto gathered = stages->make_gathered(*batch.prepared);
  std::vector<float> memory(64);
  const TensorView q(memory.data(), DType::kF32, {1, 3, 5});  // not what was prepared
  const MutableTensorView out(memory.data() + 32, DType::kF32, {1, 1, 8});
  const Error error = error_of([&] {
    stages->attend_gathered(*batch.prepared, {}, q, *gathered, {out, {}}, {});
  });
  EXPECT_EQ(error.code(), ErrorCode::kDevice);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(to_string(small_spec())), HasSubstr(version())));
}

TEST(TorchDeviceErrors, ThatComeLateArePolled) {
  std::vector<std::string> log;
  const std::unique_ptr<AttentionBackend> backend =
      make_device_backend_on_host(std::make_unique<WatchedMemory>(log));
  SmallBatch batch(*backend);
  const Status status = backend->poll(*batch.prepared);
  EXPECT_EQ(status.code, ErrorCode::kDevice);
  EXPECT_EQ(status.message, "late");
  EXPECT_EQ(log.back(), "poll");
}

// What a swap-in reads on the host, earlier work on the stream may still be writing.
TEST(TorchDeviceSwap, WaitsForWhoWritesTheHostsMemory) {
  std::vector<std::string> log;
  auto own = std::make_unique<WatchedMemory>(log);
  WatchedMemory& memory = *own;
  const std::unique_ptr<AttentionBackend> backend = make_device_backend_on_host(std::move(own));
  const AttentionSpec spec = small_spec();
  const KvCache host(memory, spec, plain_layout(spec), {.num_blocks = 1, .on_host = true});
  const KvCache device(memory, spec, plain_layout(spec), {.num_blocks = 1});
  auto* const from = static_cast<float*>(host.layer(0).k);
  const auto* const to = static_cast<const float*>(device.layer(0).k);
  from[0] = 1;
  int num_threads = 0;
  memory.on_synchronize = [&] {
    from[0] = 2;  // a swap-out that ends late
    num_threads = at::get_num_threads();
  };
  const KvCacheView src = host.layer(0);
  const KvCacheView dst = device.layer(0);
  const BlockCopy copy{.src = 0, .dst = 0};
  backend->copy_blocks({&src, 1}, {&dst, 1}, {&copy, 1});
  EXPECT_EQ(to[0], 2);
  EXPECT_EQ(num_threads, 1);  // torch's own threads stay asleep
}

}  // namespace
}  // namespace quire::torch_sdpa
