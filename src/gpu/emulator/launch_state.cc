// SPDX-License-Identifier: Apache-2.0
// Blocks and threads of a launch, from its start to its end or its fault.
#include "gpu/emulator/launch_state.h"

#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "gpu/emulator/hooks.h"

namespace quire::simt::internal {
namespace {

constexpr std::size_t kMaxThreads = 1024;
constexpr std::size_t kParameterAlignment = 64;

[[noreturn]] void fiber_entry() {
  FiberSet::finish_first_switch();
  for (;;) running_launch->run_thread();
}

// Stacks are reused by all launches of a host thread.
FiberSet& fibers_of_host_thread() {
  static thread_local FiberSet fibers(kMaxThreads, fiber_entry);
  return fibers;
}

std::uint64_t count(const Dim3& dims) {
  return std::uint64_t{dims.x} * dims.y * dims.z;
}

Dim3 unravel(std::uint64_t linear, const Dim3& dims) {
  const std::uint64_t row = linear / dims.x;
  return {static_cast<std::uint32_t>(linear % dims.x), static_cast<std::uint32_t>(row % dims.y),
          static_cast<std::uint32_t>(row / dims.y)};
}

// The number of threads in a block.
int check_shape(const LaunchShape& shape) {
  require(running_launch == nullptr, "a kernel cannot launch another one");
  require(shape.warp_width == 32 || shape.warp_width == 64, "warp width: ", shape.warp_width,
          ", there are 32 and 64");
  require(count(shape.grid) > 0, "the grid has no block: ", shape.grid.x, " x ", shape.grid.y,
          " x ", shape.grid.z);
  const std::uint64_t num_threads = count(shape.block);
  require(num_threads > 0 && num_threads <= kMaxThreads, "threads of a block: ", num_threads,
          ", the limit is ", kMaxThreads);
  return static_cast<int>(num_threads);
}

void* aligned(std::vector<std::byte>& memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t skip =
      (kParameterAlignment - begin % kParameterAlignment) % kParameterAlignment;
  return memory.data() + skip;
}

}  // namespace

constinit thread_local Launch* running_launch = nullptr;
bool hooks_are_linked = false;

Launch::Launch(const char* kernel, const LaunchShape& shape, const LaunchOptions& options,
               KernelEntry entry, const void* parameters, std::size_t parameter_bytes)
    : kernel_(kernel),
      shape_(shape),
      options_(options),
      entry_(entry),
      parameter_memory_(parameter_bytes + kParameterAlignment),
      parameters_(aligned(parameter_memory_)),
      num_threads_(check_shape(shape)),
      threads_(static_cast<std::size_t>(num_threads_)),
      fibers_(fibers_of_host_thread()),
      scheduler_(fibers_, num_threads_, options.seed),
      order_(num_threads_, shape.warp_width),
      shared_(shape.shared_bytes, options.shared_limit_bytes, hooks_present()),
      checker_({.order = order_,
                .shared = shared_,
                .fibers = fibers_,
                .host_stack = fibers_.host_stack(),
                .parameters = {reinterpret_cast<std::uintptr_t>(parameters_), parameter_bytes}},
               shape, options, hooks_present()) {
  std::memcpy(parameters_, parameters, parameter_bytes);
  for (std::size_t i = 0; i < threads_.size(); ++i) threads_[i].index = unravel(i, shape.block);
  const auto num_warps =
      static_cast<std::size_t>((num_threads_ + shape.warp_width - 1) / shape.warp_width);
  in_collective_.resize(num_warps);
  done_lanes_.resize(num_warps);
  fibers_.prepare(threads_.size());
  running_launch = this;
}

Launch::~Launch() {
  running_launch = nullptr;
}

LaunchStats Launch::run() {
  std::vector<int> order(count(shape_.grid));
  std::iota(order.begin(), order.end(), 0);
  scheduler_.shuffle(order);
  for (const int linear : order)
    run_block(unravel(static_cast<std::uint64_t>(linear), shape_.grid));
  return {.num_switches = scheduler_.num_switches(),
          .num_accesses = num_accesses_,
          .shared_bytes = shared_.used_bytes()};
}

void Launch::run_block(Dim3 block) {
  block_ = block;
  blocks_run_.push_back(block);
  const auto number = static_cast<std::uint32_t>(blocks_run_.size());
  order_.begin_block(number);
  shared_.begin_block(number);
  checker_.begin_block();
  num_at_barrier_ = num_done_ = 0;
  for (std::size_t warp = 0; warp < in_collective_.size(); ++warp) {
    in_collective_[warp] = done_lanes_[warp] = 0;
  }
  for (ThreadRecord& thread : threads_) {
    thread.state = ThreadState::kNotStarted;
    thread.copies.clear();
    thread.open_group = 0;
    thread.spin = {};
  }
  scheduler_.run_all();
  if (!fault_ && num_done_ < num_threads_) fault_ = stuck();
  if (fault_) {
    reset_fibers();
    throw KernelFault(report(*fault_));
  }
}

// Threads that stand in the middle of the kernel cannot be resumed by the next launch, nor can the
// one that left with the fault.
void Launch::reset_fibers() {
  for (int i = 0; i < num_threads_; ++i) {
    const ThreadState state = thread(i).state;
    const bool parked = state == ThreadState::kNotStarted || state == ThreadState::kDone;
    if (!parked || i == current()) fibers_.reset(static_cast<std::size_t>(i));
  }
}

void Launch::run_thread() {
  thread(current()).state = ThreadState::kRunnable;
  std::string thrown;
  try {
    inside_ = false;
    entry_(parameters_);
  } catch (const std::exception& error) {
    inside_ = true;
    thrown = concat("the kernel threw: ", error.what());
  } catch (...) {
    inside_ = true;
    thrown = "the kernel threw what is no std::exception";
  }
  inside_ = true;
  enter([&](Launch& launch) {
    if (!thrown.empty()) launch.raise(FaultKind::kException, std::move(thrown), {}, nullptr);
    launch.leave_kernel();
  });
  scheduler_.finish();
}

void Launch::raise(FaultKind kind, std::string text, Site site, const void* pc) {
  throw Fault{.kind = kind, .thread = current(), .text = std::move(text), .pc = pc, .site = site};
}

void* Launch::static_shared(const void* key, std::size_t bytes, std::size_t alignment,
                            const char* name, const void* pc) {
  void* const place = shared_.variable(key, bytes, alignment, name);
  if (place == nullptr) {
    raise(FaultKind::kSharedLimit,
          concat("no room for shared variable ", name, " of ", bytes, " bytes: ",
                 shared_.used_bytes(), " of ", options_.shared_limit_bytes, " are used"),
          {}, pc);
  }
  return place;
}

LaunchStats launch(const char* kernel, const LaunchShape& shape, const LaunchOptions& options,
                   KernelEntry entry, const void* parameters, std::size_t parameter_bytes) {
  return Launch(kernel, shape, options, entry, parameters, parameter_bytes).run();
}

}  // namespace quire::simt::internal

namespace quire::simt {

bool hooks_present() noexcept {
  return internal::hooks_are_linked;
}

}  // namespace quire::simt
