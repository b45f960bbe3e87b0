// SPDX-License-Identifier: Apache-2.0
// A ragged batch that has been validated and planned for one spec, and the memory that it needs.
#pragma once

#include <cstdint>

#include "quire/attention_spec.h"
#include "quire/batch.h"
#include "quire/device.h"
#include "quire/export.h"

namespace quire {

class AttentionBackend;

struct WorkspaceSize {
  std::int64_t host_bytes = 0;
  std::int64_t device_bytes = 0;
};

// Memory of the caller, 64-byte aligned, for one PreparedBatch at a time.
struct Workspace {
  void* host = nullptr;
  void* device = nullptr;
  WorkspaceSize size;
};

// Owns a workspace. `memory` must outlive it.
class QUIRE_API WorkspaceBuffer {
 public:
  WorkspaceBuffer(DeviceMemory& memory, const WorkspaceSize& size);
  ~WorkspaceBuffer();
  WorkspaceBuffer(const WorkspaceBuffer&) = delete;
  WorkspaceBuffer& operator=(const WorkspaceBuffer&) = delete;
  const Workspace& view() const noexcept { return workspace_; }

 private:
  DeviceMemory& memory_;
  Workspace workspace_;
};

// What validation learned of a batch: later calls check against it in constant time. Of a batch in
// device memory only the shapes are known; the rest is then the bound.
struct BatchFacts {
  // The largest value seen and where, for the message of the call that finds it too large.
  struct Largest {
    std::int64_t value = -1;
    std::int64_t sequence = -1;
    std::int64_t index = -1;
  };
  std::int64_t num_sequences = 0;
  std::int64_t num_rows = 0;    // rows of Q and out that are needed: the largest end
  std::int64_t num_tokens = 0;  // sum of q_len
  std::int64_t num_new_kv = 0;  // size of slots
  std::int64_t max_q_len = 0;
  std::int64_t max_kv_len = 0;
  std::int64_t total_kv_len = 0;
  Largest largest_block;  // of the blocks that some row can see
  Largest largest_slot;
  Largest largest_row;  // ragged: one past the last row read
  bool on_device = false;
};

// A batch, planned for one spec. Made once by AttentionBackend::make_prepared, refilled per step by
// prepare. Backends derive from it to keep their plan.
class QUIRE_API PreparedBatch {
 public:
  PreparedBatch(const AttentionSpec& spec, const BatchBounds& bounds, const Workspace& workspace);
  virtual ~PreparedBatch();
  PreparedBatch(const PreparedBatch&) = delete;
  PreparedBatch& operator=(const PreparedBatch&) = delete;

  const AttentionSpec& spec() const noexcept { return spec_; }
  const BatchBounds& bounds() const noexcept { return bounds_; }
  const Workspace& workspace() const noexcept { return workspace_; }  // the backend's own part
  const BatchView& batch() const noexcept { return batch_; }          // of the last prepare
  const BatchFacts& facts() const noexcept { return facts_; }

 private:
  friend class AttentionBackend;
  AttentionSpec spec_;
  BatchBounds bounds_;
  Workspace workspace_;
  void* validation_scratch_ = nullptr;
  bool ready_ = false;
  bool fused_append_ = false;  // Support::fused_append of the spec
  const AttentionBackend* owner_ = nullptr;
  BatchView batch_;
  BatchFacts facts_;
};

}  // namespace quire
