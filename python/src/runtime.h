// SPDX-License-Identifier: Apache-2.0
// Backends and prepared batches that calls share, so that a call of attend() pays neither for
// threads nor for memory it had before.
//
// A prepared batch is lent to one call at a time. Those that are idle are kept, by backend, spec,
// stream and bounds rounded up (rounded_up); the least recently used one goes when there are
// too many. May be used from any thread; give_back, forget and clear need the GIL, because metadata
// on a device is held by Python objects.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "batch_arrays.h"
#include "quire/backend.h"
#include "quire/registry.h"

namespace quire::python {

// A backend as Python holds it.
struct SharedBackend {
  std::string name;
  std::unique_ptr<AttentionBackend> backend;
  Device device;
  bool retired = false;  // what it made is not kept any longer; under the lock of Runtime

  SharedBackend(std::string name_, std::unique_ptr<AttentionBackend> backend_);
};
using BackendPtr = std::shared_ptr<SharedBackend>;

// A prepared batch with its memory and the metadata of its last batch.
struct PreparedState {
  BackendPtr backend;
  AttentionSpec spec;
  BatchBounds bounds;
  Stream stream;
  std::unique_ptr<WorkspaceBuffer> workspace;
  std::unique_ptr<PreparedBatch> prepared;
  BatchArrays arrays;

  PreparedState(BackendPtr backend_, const AttentionSpec& spec_, const BatchBounds& bounds_,
                Stream stream_);
  // Takes the batch; its last one may hold Python objects, so this needs the GIL.
  void set_batch(BatchArrays&& batch) { arrays = std::move(batch); }
  // Validates and plans it. Without the GIL.
  void prepare() { backend->backend->prepare(*prepared, arrays.view(), stream); }
};

// To powers of two, so that few sizes are made. Metadata on a device is trusted up to the bounds:
// then those that say how far rows and tables reach stay as they are.
BatchBounds rounded_up(const BatchBounds& bounds, bool on_device) noexcept;
bool holds(const BatchBounds& bounds, const BatchBounds& wanted) noexcept;

class Runtime {
 public:
  // The backend of a name; "auto": QUIRE_BACKEND, else the one for memory of that device.
  BackendPtr backend(const std::string& name, Device device);
  // Of backends made by name from now on, and of those that exist already.
  void set_num_threads(std::int64_t num_threads);
  int num_threads() const;

  std::unique_ptr<PreparedState> take(const BackendPtr& backend, const AttentionSpec& spec,
                                      const BatchBounds& bounds, bool on_device, Stream stream);
  void give_back(std::unique_ptr<PreparedState> state);
  // Gives up the idle memory of one that nobody will use again.
  void forget(const BackendPtr& backend);
  // Gives up all idle memory and backends that nobody else holds.
  void clear();

  static Runtime& instance();
  // In a child process of fork(): the threads of the parent are not there.
  static void after_fork();

 private:
  mutable std::mutex mutex_;
  std::vector<BackendPtr> backends_;
  std::vector<std::unique_ptr<PreparedState>> idle_;  // last used last
  int num_threads_ = 0;
};

// A prepared batch for the time of one call.
class Lease {
 public:
  Lease(const BackendPtr& backend, const AttentionSpec& spec, const BatchBounds& bounds,
        bool on_device, Stream stream)
      : state_(Runtime::instance().take(backend, spec, bounds, on_device, stream)) {}
  ~Lease() { Runtime::instance().give_back(std::move(state_)); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  PreparedState& operator*() const noexcept { return *state_; }
  PreparedState* operator->() const noexcept { return state_.get(); }

 private:
  std::unique_ptr<PreparedState> state_;
};

}  // namespace quire::python
