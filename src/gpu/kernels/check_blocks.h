// SPDX-License-Identifier: Apache-2.0
// Block ids of a table that lies on the device, against the cache that a call brings: a wrong one
// becomes a fault with its sequence and position instead of an illegal access. A thread block per
// sequence. Costs a launch per call, so it runs only where asked for.
#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "gpu/device_api.h"
#include "gpu/kernel_args.h"
#include "gpu/kernels/plan_items.h"

namespace quire::gpu {

inline constexpr int kCheckThreads = 128;

QUIRE_DEVICE void check_blocks(const CheckArgs& args) {
  const BlockTables& tables = args.batch.kv.blocks;
  for (std::int64_t s = block_index(); s < args.batch.queries.begins.size; s += num_blocks()) {
    // The plan has told of lengths that tables have no room for.
    if (fault_of_lengths(args.batch, args.bounds, s) != kNoFault) continue;
    const SequenceView sequence = sequence_view(args.batch, s);
    const KeyRange keys = keys_seen(args.mask, args.alignment, sequence, 0, sequence.q_len);
    const std::int64_t first = keys.begin / args.block_size;
    const std::int64_t last = keys.empty() ? first : (keys.end - 1) / args.block_size + 1;
    for (std::int64_t i = first + thread_index(); i < last; i += kCheckThreads) {
      std::int64_t block = 0;
      if (tables.kind == BlockTables::Kind::kRagged) {
        block = tables.rows.data[s] + i;
      } else if (tables.kind == BlockTables::Kind::kPadded) {
        block = tables.indices.data[s * tables.row_stride + i];
      } else {
        block = tables.indices.data[tables.begins.data[s] + i];
      }
      if (block < 0 || block >= args.num_blocks) {
        report_fault(args.counts, args.host_fault, fault_code(Fault::kBlock, s, i));
      }
    }
  }
}

}  // namespace quire::gpu
