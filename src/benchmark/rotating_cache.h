// SPDX-License-Identifier: Apache-2.0
// The K and V that candidates read: several layers of one batch, handed out in turn, so that none
// is found in a cache of the processor. Filled with finite random bytes at the speed of memcpy.
//
// Candidates with equal layouts share one. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "conformance/case.h"
#include "quire/backend.h"
#include "quire/kv_cache.h"

namespace quire::benchmark {

// Memory of a backend. Move-only.
class Allocation {
 public:
  Allocation(DeviceMemory& memory, std::int64_t size_bytes);
  Allocation(Allocation&& other) noexcept;
  Allocation& operator=(Allocation&&) = delete;
  ~Allocation();

  std::byte* data() const noexcept { return data_; }
  std::int64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  DeviceMemory& memory_;
  std::byte* data_;
  std::int64_t size_bytes_;
};

// Finite, normal numbers between 1/128 and 2 in magnitude (int8: any), none special.
void fill_random(DeviceMemory& memory, void* data, std::int64_t size_bytes, DType dtype);

// The layout a case's cache has with a backend; plain strides for tensors of the caller.
KvLayout layout_for(const AttentionBackend& backend, const AttentionSpec& spec,
                    conformance::CacheStyle style);

class RotatingCache {
 public:
  struct Options {
    conformance::CacheStyle style = conformance::CacheStyle::kPreferred;
    std::int64_t num_blocks = 0;
    int num_layers = 1;
  };

  // Bytes of one layer, scales included.
  static std::int64_t layer_bytes(const AttentionSpec& spec, const KvLayout& layout,
                                  const Options& options) noexcept;

  // `spec.kv.layout` is that of the layout. `backend` fills opaque layouts; it must outlive it.
  RotatingCache(AttentionBackend& backend, const AttentionSpec& spec, const KvLayout& layout,
                const Options& options);

  // Whether a case of this backend, with this layout, may use it.
  bool serves(AttentionBackend& backend, const KvLayout& layout) const noexcept;
  const KvCacheView& next() noexcept;
  void rewind() noexcept { next_ = 0; }
  const KvLayout& layout() const noexcept { return layout_; }
  int num_layers() const noexcept { return static_cast<int>(layers_.size()); }

 private:
  void bind_caller(const AttentionSpec& spec);
  void bind_owned(const AttentionSpec& spec);
  void fill_opaque(AttentionBackend& backend, const AttentionSpec& spec);

  DeviceMemory* memory_;
  KvLayout layout_;
  Options options_;
  std::vector<Allocation> tensors_;  // of the caller
  std::unique_ptr<KvCache> cache_;   // otherwise
  std::vector<KvCacheView> layers_;
  std::size_t next_ = 0;
};

}  // namespace quire::benchmark
