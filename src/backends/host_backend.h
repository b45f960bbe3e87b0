// SPDX-License-Identifier: Apache-2.0
// What backends that compute in host memory share: that memory, copies within it, and the defaults
// of a backend that reads every layout quire knows and keeps no plan of a batch.
//
// Every call has finished when it returns; the public calls refuse all but the default stream.
#pragma once

#include <memory>
#include <span>

#include "quire/backend.h"

namespace quire {

class HostBackend : public AttentionBackend {
 public:
  DeviceMemory& memory() override;

 protected:
  // Refuses private layouts, whose blocks only their backend can read.
  void collect_reasons(const AttentionSpec& spec, Support& support) const override;
  std::unique_ptr<PreparedBatch> do_make_prepared(const AttentionSpec& spec,
                                                  const BatchBounds& bounds,
                                                  const Workspace& workspace) override;
  void do_prepare(PreparedBatch& prepared, Stream stream) override;
  // Copies private layouts as they are, and refuses to convert them.
  void do_copy_blocks(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      std::span<const BlockCopy> copies, Stream stream) override;
  void do_copy_region(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                      const BlockRegionCopy& copy, Stream stream) override;
};

}  // namespace quire
