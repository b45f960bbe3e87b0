// SPDX-License-Identifier: Apache-2.0
// What may be missing for torch on CUDA, and the memory of a device, by drivers and runtimes that
// only pretend (fake_cuda.cc): folder QUIRE_FAKE_CUDA.
#include "backends/torch/cuda_probe.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "backends/torch/cuda_memory.h"
#include "quire/error.h"

namespace quire::torch_sdpa {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string file(const char* name) {
  return std::string(QUIRE_FAKE_CUDA) + "/libfake_cuda_" + name + ".so";
}

// A runtime that torch would have loaded.
class Loaded {
 public:
  explicit Loaded(const char* name)
      : path_(file(name)), handle_(dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) ADD_FAILURE() << dlerror();
  }
  ~Loaded() { dlclose(handle_); }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  const char* path() const { return path_.c_str(); }
  void* handle() const { return handle_; }
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(dlsym(handle_, name));
  }

 private:
  std::string path_;
  void* handle_;
};

TEST(TorchCudaProbe, DriversThatAreNoneAreReasons) {
  EXPECT_EQ(missing_in_driver(file("good").c_str()), "");
  EXPECT_THAT(missing_in_driver(file("absent").c_str()), HasSubstr("cannot open"));
  EXPECT_THAT(missing_in_driver(file("stub").c_str()),
              EndsWith("is the stub of a toolkit, not a driver"));
  EXPECT_EQ(missing_in_driver(file("broken").c_str()),
            "the driver does not start: cuInit returns 999");
  EXPECT_EQ(missing_in_driver(file("empty").c_str()), "the driver sees no device");
  EXPECT_THAT(missing_in_driver(file("lacking").c_str()), EndsWith("has no cuDeviceGetCount"));
}

TEST(TorchCudaProbe, RuntimesThatAreOfNoUseAreReasons) {
  EXPECT_EQ(missing_in_cuda_runtime(Loaded("good").path()), "");
  EXPECT_THAT(missing_in_cuda_runtime(file("old").c_str()), HasSubstr("is not loaded"));
  EXPECT_EQ(missing_in_cuda_runtime(Loaded("lacking").path()),
            "the CUDA runtime of torch has no cudaStreamQuery");
  EXPECT_EQ(missing_in_cuda_runtime(Loaded("empty").path()),
            "the CUDA runtime of torch finds no device");
  EXPECT_EQ(missing_in_cuda_runtime(Loaded("old").path()),
            "torch's flash attention and bf16 need compute capability 8.0, device 0 has 7.5");
}

TEST(TorchCudaProbe, StandInsAreFound) {
  EXPECT_EQ(stand_in_among(Loaded("good").handle()), "");
  EXPECT_EQ(stand_in_among(Loaded("stand_in").handle()), "libfake_cuda_stand_in");
}

// The current device belongs to the thread: memory that was made on one device is used from threads
// that are on another, and leaves them there.
TEST(TorchCudaMemory, EveryCallIsOnTheDeviceOfTheMemory) {
  const Loaded runtime("good");
  const auto set_device = runtime.function<int(int)>("cudaSetDevice");
  const auto get_device = runtime.function<int(int*)>("cudaGetDevice");
  const auto device_of_call = runtime.function<int()>("fake_device_of_call");
  set_device(1);
  const std::unique_ptr<PolledMemory> memory = make_cuda_memory(runtime.path());
  EXPECT_EQ(memory->device(), (Device{DeviceKind::kCuda, 1}));
  std::thread([&] {
    void* data = nullptr;
    void* host = nullptr;
    Stream stream;
    const std::vector<std::function<void()>> calls = {
        [&] { data = memory->allocate(8); },
        [&] { host = memory->allocate_host(8); },
        [&] { stream = memory->create_stream(); },
        [&] { memory->fill(data, 3, 8, {}); },
        [&] { memory->copy_to_host(host, data, 8, {}); },
        [&] { memory->copy_to_device(data, host, 8, {}); },
        [&] { memory->synchronize({}); },
        [&] { static_cast<void>(memory->poll({})); },
        [&] { memory->destroy_stream(stream); },
        [&] { memory->free_host(host); },
        [&] { memory->free(data); },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i]();
      EXPECT_EQ(device_of_call(), 1) << i;
      int current = -1;
      get_device(&current);
      EXPECT_EQ(current, 0) << i;
    }
  }).join();
  set_device(0);
}

TEST(TorchCudaMemory, PollTellsWhatHasFailedByNow) {
  const Loaded runtime("good");
  const auto set_result = runtime.function<void(int)>("fake_set_query_result");
  const std::unique_ptr<PolledMemory> memory = make_cuda_memory(runtime.path());
  EXPECT_TRUE(memory->poll({}).ok());
  set_result(600);  // not ready
  EXPECT_TRUE(memory->poll({}).ok());
  set_result(700);
  const Status status = memory->poll({});
  EXPECT_EQ(status.code, ErrorCode::kDevice);
  EXPECT_THAT(status.message, AllOf(HasSubstr("CUDA"), HasSubstr("illegal address")));
  const auto set_capture = runtime.function<void(int)>("fake_set_capture_status");
  set_capture(1);  // a query would end the recording
  EXPECT_TRUE(memory->poll({}).ok());
  set_capture(0);
  set_result(0);
}

TEST(TorchCudaMemory, LacksOfTheRuntimeAreErrors) {
  const Loaded runtime("lacking");
  try {
    static_cast<void>(make_cuda_memory(runtime.path()));
    FAIL() << "a runtime without cudaStreamQuery was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("cudaStreamQuery"));
  }
}

}  // namespace
}  // namespace quire::torch_sdpa
