// SPDX-License-Identifier: Apache-2.0
// Blocks from cache to cache as they are: within one, across two, between device and pinned host
// memory. One launch for all layers and all copies.
#pragma once

#include <cstdint>

#include "gpu/device_api.h"
#include "gpu/transfer_args.h"

namespace quire::gpu {

// [0, bytes) from one place to another, by all threads of the block: all that a thread copies is in
// flight before it stores the first. REQUIRES: bytes <= kCopyPiece.
QUIRE_DEVICE void copy_piece(unsigned char* to, const unsigned char* from, int bytes) {
  const auto bits = reinterpret_cast<std::uint64_t>(to) | reinterpret_cast<std::uint64_t>(from) |
                    static_cast<std::uint64_t>(bytes);
  if (bits % sizeof(Sixteen) != 0) {
    for (int i = thread_index(); i < bytes; i += kCopyThreads) to[i] = from[i];
    return;
  }
  const auto* source = reinterpret_cast<const Sixteen*>(from) + thread_index();
  auto* target = reinterpret_cast<Sixteen*>(to) + thread_index();
  const int count = bytes / static_cast<int>(sizeof(Sixteen)) - thread_index();
  Sixteen piece[kCopyInFlight];
  QUIRE_UNROLL
  for (int k = 0; k < kCopyInFlight; ++k) {
    if (k * kCopyThreads < count) piece[k] = source[k * kCopyThreads];
  }
  QUIRE_UNROLL
  for (int k = 0; k < kCopyInFlight; ++k) {
    if (k * kCopyThreads < count) target[k * kCopyThreads] = piece[k];
  }
}

// Pieces of parts of blocks, as they are. Grid: (part, copy, piece) in one index.
QUIRE_DEVICE void copy_records(const CopyRecordArgs& args) {
  const int total = args.num_parts * args.num_copies * args.num_pieces;
  for (int i = block_index(); i < total; i += num_blocks()) {
    const int unit = divide(i, args.by_pieces);
    const int part_index = divide(unit, args.by_copies);
    const int copy_index = unit - part_index * args.num_copies;
    BlockCopy copy;
    CopyPart part;
    if (args.copies != nullptr) {
      copy = args.copies[copy_index];
      part = args.parts[part_index];
    } else {
      copy = args.few_copies[copy_index];
      part = args.few_parts[part_index];
    }
    const std::int64_t begin = static_cast<std::int64_t>(i - unit * args.num_pieces) * kCopyPiece;
    const std::int64_t rest = part.size_bytes - begin;
    if (rest <= 0) continue;
    copy_piece(part.to + copy.dst * part.to_block + begin,
               part.from + copy.src * part.from_block + begin,
               rest < kCopyPiece ? static_cast<int>(rest) : kCopyPiece);
  }
}

}  // namespace quire::gpu
