// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/block_copies.h"

#include <algorithm>
#include <vector>

#include "backends/gpu/transfer_plan.h"
#include "base/check.h"

namespace quire::gpu {
namespace {

constexpr std::int64_t kMaxUnits = std::int64_t{1} << 30;  // indices of the kernel are 32-bit

}  // namespace

void BlockCopies::enqueue(std::span<const KvCacheView> src, std::span<const KvCacheView> dst,
                          std::span<const BlockCopy> copies, const Tokens& tokens, Stream stream) {
  std::vector<LayerPair> layers(src.size());
  for (std::size_t i = 0; i < src.size(); ++i) {
    layers[i] = {src[i], dst[i]};
    for (const KvCacheView* cache : {&src[i], &dst[i]}) {
      if (cache->device.is_host() && !runtime_.is_reachable(cache->k)) {
        fail(ErrorCode::kUnsupported, "copy: layer ", i,
             " lies in host memory that the device "
             "cannot reach; allocate it with memory().allocate_host or KvCache::Options::on_host");
      }
    }
  }
  std::vector<CopyPart> parts;
  if (tokens.count == src[0].format.block_size) parts = plan_copy(layers);
  if (parts.empty()) {
    convert(layers, copies, tokens, stream);
  } else {
    copy_records(parts, copies, stream);
  }
}

// Between layouts, or with gaps.
void BlockCopies::convert(std::span<const LayerPair> layers, std::span<const BlockCopy> copies,
                          const Tokens& tokens, Stream stream) {
  CopyArgs args;
  args.num_layers = static_cast<std::int32_t>(layers.size());
  args.first_token = tokens.first;
  args.num_tokens = tokens.count;
  while (!copies.empty()) {
    const StagingRing::Slot slot = staging_.acquire(stream);
    args.layers = slot.put(layers.data(), layers.size());
    const std::size_t count = std::min(copies.size(), slot.room<BlockCopy>());
    require(count > 0, "copy: no room for the list of ", layers.size(), " layers");
    args.copies = slot.put(copies.data(), count);
    args.num_copies = static_cast<std::int32_t>(count);
    slot.upload(stream);
    launch(KernelKind::kCopyBlocks, &args, std::int64_t{args.num_layers} * args.num_copies, 8,
           stream);
    slot.release(stream);
    copies = copies.subspan(count);
  }
}

void BlockCopies::copy_records(std::span<const CopyPart> parts, std::span<const BlockCopy> copies,
                               Stream stream) {
  std::int64_t largest = 0;
  for (const CopyPart& part : parts) largest = std::max(largest, part.size_bytes);
  CopyRecordArgs args;
  args.num_parts = static_cast<std::int32_t>(parts.size());
  args.num_pieces = static_cast<std::int32_t>(ceil_div(largest, std::int64_t{kCopyPiece}));
  args.by_pieces = make_divider(args.num_pieces);
  const std::int64_t units_per_copy = std::int64_t{args.num_parts} * args.num_pieces;
  const auto launch_copies = [&](std::size_t count) {
    args.num_copies = static_cast<std::int32_t>(count);
    args.by_copies = make_divider(args.num_copies);
    launch(KernelKind::kCopyRecords, &args, units_per_copy * args.num_copies,
           kShortBlocksPerProcessor, stream);
  };
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(kMaxUnits / units_per_copy, 1));
  if (parts.size() <= CopyRecordArgs::kFewParts &&
      copies.size() <= std::min<std::size_t>(CopyRecordArgs::kFewCopies, most)) {
    if (copies.empty()) return;
    std::copy(parts.begin(), parts.end(), args.few_parts);
    std::copy(copies.begin(), copies.end(), args.few_copies);
    launch_copies(copies.size());
    return;
  }
  while (!copies.empty()) {
    const StagingRing::Slot slot = staging_.acquire(stream);
    args.parts = slot.put(parts.data(), parts.size());
    const std::size_t count = std::min({copies.size(), slot.room<BlockCopy>(), most});
    require(count > 0, "copy: no room for the list of ", parts.size(), " tensors");
    args.copies = slot.put(copies.data(), count);
    slot.upload(stream);
    launch_copies(count);
    slot.release(stream);
    copies = copies.subspan(count);
  }
}

void BlockCopies::launch(KernelKind kernel, const void* args, std::int64_t num_units,
                         int per_processor, Stream stream) {
  const std::int64_t num_blocks =
      std::min<std::int64_t>(num_units, std::int64_t{runtime_.num_processors()} * per_processor);
  runtime_.launch({.kind = kernel}, static_cast<int>(num_blocks), args, stream);
}

}  // namespace quire::gpu
