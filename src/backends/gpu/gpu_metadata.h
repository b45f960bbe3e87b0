// SPDX-License-Identifier: Apache-2.0
// The metadata of a batch on its way from the host to the workspace of the device: where each array
// lies there, always at the same place for the same bounds, so that what a graph captured stays
// true.
#pragma once

#include <cstdint>

#include "quire/attention_spec.h"
#include "quire/batch.h"

namespace quire::gpu {

// Byte offsets into the metadata region, the same on the host (staging) and on the device.
struct MetadataLayout {
  std::int64_t begins, ends, lens, table_begins, rows, tree_begins;
  std::int64_t lengths_end;  // all of the above are copied together
  std::int64_t slots, indices, tree_bits, tree_depths;
  std::int64_t total;
};

MetadataLayout metadata_layout(const AttentionSpec& spec, const BatchBounds& bounds);

// A part of the region to be copied.
struct MetadataPart {
  std::int64_t begin = 0;
  std::int64_t size_bytes = 0;
};

// What packing left to be copied, and the batch as the device will see it.
struct PackedMetadata {
  static constexpr int kMaxParts = 5;
  MetadataPart parts[kMaxParts];
  int num_parts = 0;
  BatchView batch;
};

// Packs the arrays of a batch in host memory into `staging`; tables become indexed ones without
// unused entries. REQUIRES: `batch` was validated against the bounds.
PackedMetadata pack_metadata(const AttentionSpec& spec, const MetadataLayout& layout,
                             const BatchView& batch, void* staging, void* device_region,
                             Device device);

}  // namespace quire::gpu
