// SPDX-License-Identifier: Apache-2.0
#include "runtime.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <utility>

#include "fail.h"

namespace quire::python {
namespace {

constexpr std::size_t kMaxIdle = 64;

std::int64_t power_of_two(std::int64_t value) noexcept {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  if (value > kLargest / 2) return std::max(value, kLargest);
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(value, 1))));
}

std::string automatic_name(Device device) {
  if (const char* forced = std::getenv("QUIRE_BACKEND"); forced != nullptr && *forced != '\0') {
    return forced;
  }
  switch (device.kind) {
    case DeviceKind::kHost:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    default:
      break;
  }
  fail(ErrorCode::kUnsupported, "no backend computes on ", device_kind_name(device.kind), " ",
       device.index);
}

Runtime*& instance_pointer() {
  static auto* runtime = new Runtime();  // not destroyed: its threads may outlive main
  return runtime;
}

}  // namespace

SharedBackend::SharedBackend(std::string name_, std::unique_ptr<AttentionBackend> backend_)
    : name(std::move(name_)), backend(std::move(backend_)), device(backend->memory().device()) {}

PreparedState::PreparedState(BackendPtr backend_, const AttentionSpec& spec_,
                             const BatchBounds& bounds_, Stream stream_)
    : backend(std::move(backend_)), spec(spec_), bounds(bounds_), stream(stream_) {
  AttentionBackend& made_by = *backend->backend;
  workspace = std::make_unique<WorkspaceBuffer>(made_by.memory(), made_by.workspace(spec, bounds));
  prepared = made_by.make_prepared(spec, bounds, workspace->view());
}

BatchBounds rounded_up(const BatchBounds& bounds, bool on_device) noexcept {
  BatchBounds rounded = bounds;
  rounded.max_sequences = power_of_two(bounds.max_sequences);
  if (on_device) return rounded;
  rounded.max_tokens = power_of_two(bounds.max_tokens);
  rounded.max_kv_len = power_of_two(bounds.max_kv_len);
  rounded.max_total_kv_len = std::max(power_of_two(bounds.max_total_kv_len), rounded.max_kv_len);
  rounded.max_q_len = power_of_two(bounds.max_q_len);
  return rounded;
}

bool holds(const BatchBounds& bounds, const BatchBounds& wanted) noexcept {
  return wanted.max_sequences <= bounds.max_sequences && wanted.max_tokens <= bounds.max_tokens &&
         wanted.max_kv_len <= bounds.max_kv_len &&
         wanted.max_total_kv_len <= bounds.max_total_kv_len &&
         wanted.longest_query() <= bounds.longest_query();
}

BackendPtr Runtime::backend(const std::string& name, Device device) {
  const std::string wanted = name == "auto" ? automatic_name(device) : name;
  const std::scoped_lock lock(mutex_);
  for (const BackendPtr& one : backends_) {
    if (one->name == wanted) return one;
  }
  auto made = std::make_shared<SharedBackend>(
      wanted, make_backend(wanted, {.num_threads = num_threads_, .isa = {}}));
  backends_.push_back(made);
  return made;
}

void Runtime::set_num_threads(std::int64_t num_threads) {
  require(num_threads >= 0 && num_threads <= kMaxBackendThreads, "num_threads: not in [0, ",
          kMaxBackendThreads, "]: ", num_threads);
  clear();
  const std::scoped_lock lock(mutex_);
  num_threads_ = static_cast<int>(num_threads);
}

int Runtime::num_threads() const {
  const std::scoped_lock lock(mutex_);
  return num_threads_;
}

std::unique_ptr<PreparedState> Runtime::take(const BackendPtr& backend, const AttentionSpec& spec,
                                             const BatchBounds& bounds, bool on_device,
                                             Stream stream) {
  const BatchBounds wanted = rounded_up(bounds, on_device);
  {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = idle_.size(); i-- > 0;) {
      const PreparedState& state = *idle_[i];
      const bool fits = state.backend == backend && state.stream == stream &&
                        holds(state.bounds, wanted) && holds(wanted, state.bounds) &&
                        state.spec == spec;
      if (!fits) continue;
      std::unique_ptr<PreparedState> found = std::move(idle_[i]);
      idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
  }
  return std::make_unique<PreparedState>(backend, spec, wanted, stream);
}

void Runtime::give_back(std::unique_ptr<PreparedState> state) {
  if (state == nullptr) return;
  std::unique_ptr<PreparedState> oldest;  // destroyed without the lock
  const std::scoped_lock lock(mutex_);
  // A backend that was given up is not kept alive by what it made.
  if (state->backend->retired) {
    oldest = std::move(state);
    return;
  }
  if (idle_.size() >= kMaxIdle) {
    oldest = std::move(idle_.front());
    idle_.erase(idle_.begin());
  }
  idle_.push_back(std::move(state));
}

void Runtime::forget(const BackendPtr& backend) {
  std::vector<std::unique_ptr<PreparedState>> unused;
  const std::scoped_lock lock(mutex_);
  backend->retired = true;
  for (std::unique_ptr<PreparedState>& state : idle_) {
    if (state->backend == backend) unused.push_back(std::move(state));
  }
  std::erase(idle_, nullptr);
}

void Runtime::clear() {
  std::vector<std::unique_ptr<PreparedState>> idle;
  std::vector<BackendPtr> backends;
  const std::scoped_lock lock(mutex_);
  for (const BackendPtr& backend : backends_) backend->retired = true;
  idle.swap(idle_);
  backends.swap(backends_);
}

Runtime& Runtime::instance() {
  return *instance_pointer();
}

void Runtime::after_fork() {
  const int num_threads = instance_pointer()->num_threads_;
  // The old one is left as it is: its lock may be held, its threads do not exist here.
  instance_pointer() = new Runtime();
  instance_pointer()->num_threads_ = num_threads;
}

}  // namespace quire::python
