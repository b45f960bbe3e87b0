// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/gpu_meter.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"
#include "gpu/kernel_args.h"
#include "gpu/rate_probe_shape.h"

namespace quire::gpu {
namespace {

class GpuMeter final : public DeviceMeter {
 public:
  GpuMeter(std::unique_ptr<GpuRuntime> runtime, const GpuMeterOptions& options)
      : runtime_(std::move(runtime)), options_(options) {
    for (void*& mark : marks_) mark = runtime_->create_timed_fence();
  }
  ~GpuMeter() override {
    for (void* mark : marks_) runtime_->destroy_fence(mark);
    if (buffer_ != nullptr) runtime_->memory().free(buffer_);
    if (host_buffer_ != nullptr) runtime_->memory().free_host(host_buffer_);
  }
  GpuMeter(const GpuMeter&) = delete;
  GpuMeter& operator=(const GpuMeter&) = delete;

  DeviceFacts facts() const override { return runtime_->facts(); }
  std::int64_t free_memory_bytes() override { return runtime_->free_memory_bytes(); }

  std::unique_ptr<DeviceRecording> record(std::function<void()> enqueue, Stream stream) override {
    return runtime_->record(std::move(enqueue), stream);
  }

  void set_mark(int mark, Stream stream) override {
    runtime_->record_fence(marks_.at(static_cast<std::size_t>(mark)), stream);
  }
  double seconds_between(int first, int last) override {
    void* from = marks_.at(static_cast<std::size_t>(first));
    void* to = marks_.at(static_cast<std::size_t>(last));
    runtime_->wait_fence(from);
    runtime_->wait_fence(to);
    return runtime_->seconds_between(from, to);
  }

  double enqueue_probe(DeviceLimit limit, std::int64_t region_bytes, Stream stream) override {
    allocate();
    const std::int64_t half = options_.memory_bytes / 2;
    switch (limit) {
      case DeviceLimit::kRead: {
        if (read_grid_ == 0) read_grid_ = fastest_grid(nullptr, options_.memory_bytes, stream);
        const bool whole = region_bytes <= 0 || region_bytes >= options_.memory_bytes;
        const std::int64_t bytes =
            whole ? options_.memory_bytes : std::max<std::int64_t>(region_bytes / 16 * 16, 16);
        // A part is read as often as the whole would have been, within reason.
        const std::int64_t passes = std::clamp<std::int64_t>(options_.memory_bytes / bytes, 1, 64);
        stream_bytes({.from = buffer_,
                      .to = nullptr,
                      .size_bytes = bytes,
                      .num_passes = static_cast<std::int32_t>(passes),
                      .sink = sink()},
                     read_grid_, stream);
        return static_cast<double>(bytes * passes);
      }
      case DeviceLimit::kCopy:
        if (copy_grid_ == 0) copy_grid_ = fastest_grid(buffer_ + half, half, stream);
        stream_bytes({.from = buffer_,
                      .to = buffer_ + half,
                      .size_bytes = half,
                      .num_passes = 1,
                      .sink = sink()},
                     copy_grid_, stream);
        return static_cast<double>(half);
      case DeviceLimit::kMultiply:
        return multiply(stream);
      case DeviceLimit::kToHost:
        runtime_->memory().copy_to_host(host_buffer(), buffer_, options_.link_bytes, stream);
        return static_cast<double>(options_.link_bytes);
      case DeviceLimit::kToDevice:
        runtime_->memory().copy_to_device(buffer_, host_buffer(), options_.link_bytes, stream);
        return static_cast<double>(options_.link_bytes);
    }
    return 0;
  }

 private:
  static constexpr std::int64_t kSinkBytes = 256;

  std::uint32_t* sink() const {
    return reinterpret_cast<std::uint32_t*>(buffer_ + options_.memory_bytes);
  }

  void allocate() {
    if (buffer_ != nullptr) return;
    require(options_.memory_bytes % 32 == 0 && options_.link_bytes <= options_.memory_bytes,
            "the buffers of a meter do not fit each other");
    DeviceMemory& memory = runtime_->memory();
    buffer_ = static_cast<char*>(memory.allocate(options_.memory_bytes + kSinkBytes));
    memory.fill(buffer_, 0x11, options_.memory_bytes + kSinkBytes, Stream{});
    memory.synchronize(Stream{});
  }
  // Pinned, and only where the link is probed.
  void* host_buffer() {
    if (host_buffer_ == nullptr) {
      host_buffer_ = static_cast<char*>(runtime_->memory().allocate_host(options_.link_bytes));
      std::fill_n(host_buffer_, options_.link_bytes, char{0x11});
    }
    return host_buffer_;
  }

  void stream_bytes(const StreamBytesArgs& args, std::int64_t num_blocks, Stream stream) {
    const std::int64_t chunks = (args.size_bytes + kStreamBytesChunk - 1) / kStreamBytesChunk;
    runtime_->launch({.kind = KernelKind::kStreamBytes},
                     static_cast<int>(std::min(num_blocks, chunks)), &args, stream);
  }

  // Which number of blocks is best differs between devices: a few on each processor, or one for
  // every chunk.
  std::int64_t fastest_grid(void* to, std::int64_t size_bytes, Stream stream) {
    const std::int64_t processors = runtime_->num_processors();
    const StreamBytesArgs args{
        .from = buffer_, .to = to, .size_bytes = size_bytes, .num_passes = 1, .sink = sink()};
    void* first = runtime_->create_timed_fence();
    void* last = runtime_->create_timed_fence();
    std::int64_t best_grid = 0;
    double best = std::numeric_limits<double>::infinity();
    for (const std::int64_t grid : {2 * processors, 4 * processors, 8 * processors, 16 * processors,
                                    std::int64_t{std::numeric_limits<int>::max()}}) {
      for (int run = 0; run < 3; ++run) {
        stream_bytes(args, grid, stream);  // so that the host is ahead of the device
        runtime_->record_fence(first, stream);
        stream_bytes(args, grid, stream);
        runtime_->record_fence(last, stream);
        runtime_->wait_fence(last);
        const double seconds = runtime_->seconds_between(first, last);
        if (seconds >= best) continue;
        best = seconds;
        best_grid = grid;
      }
    }
    runtime_->destroy_fence(first);
    runtime_->destroy_fence(last);
    return best_grid;
  }

  double multiply(Stream stream) {
    const KernelId kernel{.kind = KernelKind::kMultiplyRate};
    const int num_blocks = runtime_->num_processors() * runtime_->blocks_per_processor(kernel);
    const MultiplyRateArgs args{.num_steps = options_.multiply_steps,
                                .sink = reinterpret_cast<float*>(sink())};
    runtime_->launch(kernel, num_blocks, &args, stream);
    return static_cast<double>(kMultiplyStepOps) * num_blocks * options_.multiply_steps;
  }

  std::unique_ptr<GpuRuntime> runtime_;
  GpuMeterOptions options_;
  std::array<void*, kNumMarks> marks_{};
  char* buffer_ = nullptr;  // [memory_bytes + kSinkBytes]
  char* host_buffer_ = nullptr;
  std::int64_t read_grid_ = 0;
  std::int64_t copy_grid_ = 0;
};

}  // namespace

std::unique_ptr<DeviceMeter> make_gpu_meter(std::unique_ptr<GpuRuntime> runtime,
                                            const GpuMeterOptions& options) {
  return std::make_unique<GpuMeter>(std::move(runtime), options);
}

}  // namespace quire::gpu
