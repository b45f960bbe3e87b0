// SPDX-License-Identifier: Apache-2.0
#include "kv/canary.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "kv/block_manager_state.h"
#include "layout/kv_extent.h"
#include "layout/kv_offset.h"

namespace quire {
namespace {

std::uint64_t mix(std::uint64_t print, std::uint64_t word) noexcept {
  print = (print ^ word) * 0x9E3779B97F4A7C15ULL;
  return print ^ (print >> 29);
}

// All heads and dims of one token of K or V.
std::uint64_t add_tensor(std::uint64_t print, const KvCacheView& cache, KvTensor tensor,
                         BlockId block, std::int64_t token) {
  const bool is_k = tensor == KvTensor::kK;
  const auto* base = static_cast<const std::uint8_t*>(is_k ? cache.k : cache.v);
  const std::int64_t element_bytes = dtype_bytes(cache.format.dtype);
  const KvScales& scales = is_k ? cache.k_scales : cache.v_scales;
  for (int head = 0; head < cache.num_kv_heads; ++head) {
    for (int dim = 0; dim < (is_k ? cache.head_dim : cache.value_dim); ++dim) {
      const std::int64_t offset = element_offset(cache, tensor, block, head, token, dim);
      std::uint64_t word = 0;
      std::memcpy(&word, base + offset * element_bytes, static_cast<std::size_t>(element_bytes));
      print = mix(print, word);
    }
    if (cache.format.scales == ScaleGranularity::kPerTokenHead) {
      std::uint32_t word = 0;
      std::memcpy(&word, scales.data + scale_offset(scales, block, head, token), sizeof(word));
      print = mix(print, word);
    }
  }
  return print;
}

}  // namespace

KvCanary::KvCanary(const BlockManager& manager, int group, std::span<const KvCacheView> layers,
                   std::span<const KvCacheView> host_layers)
    : manager_(manager), group_(group) {
  manager.state_->require_group(group);
  require(!layers.empty(), "a canary needs at least one layer to watch");
  watch(Side::kDevice, layers);
  watch(Side::kHost, host_layers);
}

void KvCanary::watch(Side which, std::span<const KvCacheView> layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    require(layers[i].device.is_host() && !is_opaque(layers[i].format.layout), "layer ", i,
            " must lie in host memory in a layout that is not opaque");
    require(layers[i].format.block_size == manager_.options().block_size, "layer ", i,
            " has blocks of ", layers[i].format.block_size, " tokens, the manager of ",
            manager_.options().block_size);
    require(layers[i].num_blocks == layers[0].num_blocks, "layer ", i, " has ",
            layers[i].num_blocks, " blocks, the first one ", layers[0].num_blocks);
  }
  if (layers.empty()) return;
  const auto num_slots =
      static_cast<std::size_t>(layers[0].num_blocks * layers[0].format.block_size);
  side(which).layers.assign(layers.begin(), layers.end());
  side(which).prints.resize(num_slots);
  side(which).storers.resize(num_slots);
}

std::uint64_t KvCanary::print_of(const Watched& watched, BlockId block, std::int64_t token) const {
  std::uint64_t print = 0;
  for (const KvCacheView& layer : watched.layers) {
    print = add_tensor(print, layer, KvTensor::kK, block, token);
    if (!layer.format.v_in_k) print = add_tensor(print, layer, KvTensor::kV, block, token);
  }
  return print;
}

void KvCanary::stored(SequenceId id, std::span<const std::int64_t> slots) {
  const std::int64_t size = manager_.options().block_size;
  Watched& watched = side(Side::kDevice);
  for (const std::int64_t slot : slots) {
    const auto index = static_cast<std::size_t>(slot);
    require(slot >= 0 && index < watched.prints.size(), "sequence ", id, ": slot ", slot,
            " is outside the watched cache of ", watched.prints.size(), " slots");
    watched.prints[index] = print_of(watched, static_cast<BlockId>(slot / size), slot % size);
    watched.storers[index] = id;
  }
}

void KvCanary::copy_prints(Side from, Side to, std::span<const BlockCopy> copies) {
  if (side(from).layers.empty() || side(to).layers.empty()) return;
  const std::int64_t size = manager_.options().block_size;
  for (const BlockCopy& copy : copies) {
    for (std::int64_t i = 0; i < size; ++i) {
      const auto src = static_cast<std::size_t>(copy.src * size + i);
      const auto dst = static_cast<std::size_t>(copy.dst * size + i);
      side(to).prints.at(dst) = side(from).prints.at(src);
      side(to).storers[dst] = side(from).storers[src];
    }
  }
}

void KvCanary::copied(std::span<const GroupCopies> copies) {
  require(copies.size() == manager_.options().groups.size(), "copies of ", copies.size(),
          " groups, the manager has ", manager_.options().groups.size());
  const GroupCopies& group = copies[static_cast<std::size_t>(group_)];
  copy_prints(Side::kDevice, Side::kDevice, group.on_device);
  copy_prints(Side::kDevice, Side::kHost, group.to_host);
  copy_prints(Side::kHost, Side::kDevice, group.to_device);
  copy_prints(Side::kHost, Side::kHost, group.on_host);
}

void KvCanary::verify() const {
  const BlockManager::State& state = *manager_.state_;
  const std::int64_t size = state.options.block_size;
  for (std::size_t record = 0; record < state.sequences.size(); ++record) {
    const SequenceRecord& sequence = state.sequences[record];
    if (sequence.status == SequenceRecord::Status::kFree) continue;
    const bool is_swapped = sequence.status == SequenceRecord::Status::kSwapped;
    const Watched& watched = side(is_swapped ? Side::kHost : Side::kDevice);
    const BlockPool& pool = is_swapped ? state.pool_of(group_).host : state.pool_of(group_).device;
    if (watched.layers.empty()) continue;
    const std::int64_t cross = sequence.cross_is_stored ? sequence.num_cross_tokens : 0;
    const std::int64_t num_tokens = state.is_cross(group_) ? cross : sequence.num_tokens;
    for (std::int64_t i = 0; i < num_tokens; ++i) {
      const BlockId block = sequence.table(group_).blocks[static_cast<std::size_t>(i / size)];
      // A copy that waits has not filled its block yet.
      if (block == kNullBlock || pool.note(block) != 0) continue;
      const auto slot = static_cast<std::size_t>(block * size + i % size);
      if (print_of(watched, block, i % size) == watched.prints[slot]) continue;
      fail(ErrorCode::kInternal, "sequence ", state.id_of(record), ", group ", group_, ", token ",
           i, ": ", is_swapped ? "host block " : "block ", block, ", slot ", slot,
           " was overwritten since sequence ", watched.storers[slot], " stored it");
    }
  }
}

}  // namespace quire
