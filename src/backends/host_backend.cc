// SPDX-License-Identifier: Apache-2.0
#include "backends/host_backend.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/host_memory.h"
#include "layout/kv_copy.h"
#include "layout/kv_extent.h"

namespace quire {

DeviceMemory& HostBackend::memory() {
  return host_memory();
}

void HostBackend::collect_reasons(const AttentionSpec& spec, Support& support) const {
  if (!is_opaque(spec.kv.layout)) return;
  support.reasons.push_back(
      concat("layout ", static_cast<int>(spec.kv.layout), " is private to another backend"));
}

std::unique_ptr<PreparedBatch> HostBackend::do_make_prepared(const AttentionSpec& spec,
                                                             const BatchBounds& bounds,
                                                             const Workspace& workspace) {
  return std::make_unique<PreparedBatch>(spec, bounds, workspace);
}

void HostBackend::do_prepare(PreparedBatch& /*prepared*/, Stream /*stream*/) {}

void HostBackend::do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                                 std::span<const BlockCopy> copies, Stream /*stream*/) {
  for (std::size_t i = 0; i < src.size(); ++i) {
    const KvLayoutId from = src[i].format.layout;
    const KvLayoutId to = dst[i].format.layout;
    if (from == to || !is_opaque(std::max(from, to))) continue;
    fail(ErrorCode::kUnsupported, "layer ", i, ": layout ", static_cast<int>(std::max(from, to)),
         " is private to another backend");
  }
  copy_blocks_host(src, dst, copies);
}

void HostBackend::do_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                                 const BlockRegionCopy& copy, Stream /*stream*/) {
  copy_region_host(src, dst, copy);
}

}  // namespace quire
