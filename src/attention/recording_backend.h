// SPDX-License-Identifier: Apache-2.0
// For tests: a backend that computes nothing, writes one byte wherever it may write, and records
// which of the protected calls were reached. Not thread-safe.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/backend.h"

namespace quire::testing {

// Memory that says it lies on a device. Nothing is ever allocated from it.
class NamedMemory : public DeviceMemory {
 public:
  explicit NamedMemory(Device device) : device_(device) {}
  Device device() const noexcept override { return device_; }
  void* allocate(std::int64_t, PageHint) override { return nullptr; }
  void free(void*) noexcept override {}
  void* allocate_host(std::int64_t) override { return nullptr; }
  void free_host(void*) noexcept override {}
  void copy_to_device(void*, const void*, std::int64_t, Stream) override {}
  void copy_to_host(void*, const void*, std::int64_t, Stream) override {}
  void fill(void*, unsigned char, std::int64_t, Stream) override {}
  Stream create_stream() override { return {}; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}

 private:
  Device device_;
};

class RecordingBackend : public AttentionBackend {
 public:
  explicit RecordingBackend(Device device = {}) : memory_(device) {}

  // What it answers, and what it recorded.
  Support support;
  WorkspaceSize own_workspace{.host_bytes = 100, .device_bytes = 0};
  std::vector<std::string> calls;

  BackendInfo info() const override {
    BackendInfo info;
    info.name = "recording";
    info.device = memory_.device();
    return info;
  }
  DeviceMemory& memory() override { return memory_; }

 protected:
  void collect_reasons(const AttentionSpec&, Support& answer) const override { answer = support; }
  WorkspaceSize do_workspace(const AttentionSpec&, const BatchBounds&) const override {
    return own_workspace;
  }
  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override {
    calls.emplace_back("make_prepared");
    return std::make_unique<PreparedBatch>(spec, bounds, workspace);
  }
  void do_prepare(PreparedBatch&, Stream) override { calls.emplace_back("prepare"); }
  void do_append(const PreparedBatch&, const NewKv&, const KvCacheView& cache, Stream) override {
    calls.emplace_back("append");
    touch(cache);
  }
  void do_attend(const PreparedBatch&, const AttentionParams&, const TensorView&,
                 const KvSource& source, const AttentionOutput& output, Stream) override {
    calls.emplace_back(source.new_kv.k.present() ? "attend with new K and V" : "attend");
    touch(output);
  }
  void do_merge(std::span<const Partial>, ArrayView<float>, const AttentionOutput& output,
                Stream) override {
    calls.emplace_back("merge");
    touch(output);
  }
  void do_copy_blocks(std::span<const KvCacheView>, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy>, Stream) override {
    calls.emplace_back("copy_blocks");
    for (const KvCacheView& layer : dst) touch(layer);
  }
  void do_copy_region(std::span<const KvCacheView>, std::span<const KvCacheView> dst,
                      const BlockRegionCopy&, Stream) override {
    calls.emplace_back("copy_region");
    for (const KvCacheView& layer : dst) touch(layer);
  }

 private:
  void touch(void* data) const {
    if (memory_.device().is_host() && data != nullptr) std::memset(data, 1, 1);
  }
  void touch(const KvCacheView& cache) const {
    touch(cache.k);
    touch(cache.v);
  }
  void touch(const AttentionOutput& output) const {
    touch(output.out.data);
    touch(output.lse.data);
  }

  NamedMemory memory_;
};

}  // namespace quire::testing
