// SPDX-License-Identifier: Apache-2.0
// A cache that holds, instead of K and V, which token at which position each slot stands for. It
// does what a batch says and finds every key that attention would read wrongly.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "quire/block_manager.h"
#include "quire/scheduled_batch.h"

namespace quire::test {

class SimulatedCache {
 public:
  explicit SimulatedCache(const BlockManagerOptions& blocks) : blocks_(blocks) {
    for (const LayerGroup& group : blocks.groups) {
      const BlockPoolOptions& pool = blocks.pools[static_cast<std::size_t>(group.pool)];
      device_.emplace_back(static_cast<std::size_t>(pool.num_blocks * blocks.block_size));
      host_.emplace_back(static_cast<std::size_t>(pool.num_host_blocks * blocks.block_size));
    }
  }

  // Within a stage the order does not count: the last come first here.
  void copy(const ScheduledBatch& batch, std::size_t num_stages) {
    for (const CopyStage& stage : batch.copies().first(num_stages)) {
      for (std::size_t g = 0; g < device_.size(); ++g) {
        const GroupCopies& copies = stage.groups[g];
        copy(copies.on_host, host_[g], host_[g]);
        copy(copies.to_device, host_[g], device_[g]);
        copy(copies.to_host, device_[g], host_[g]);
        copy(copies.on_device, device_[g], device_[g]);
      }
    }
  }

  void store(const ScheduledBatch& batch) {
    for (std::size_t g = 0; g < device_.size(); ++g) {
      const BatchView view = batch.view(static_cast<int>(g));
      for (std::int64_t row = 0; row < batch.num_tokens(); ++row) {
        const auto i = static_cast<std::size_t>(row);
        at(device_[g], view.kv.slots[row]) = {.token = batch.tokens()[i],
                                              .position = batch.positions()[i]};
      }
    }
  }

  // What a step leaves that broke off somewhere.
  void store_garbage(const ScheduledBatch& batch) {
    for (std::size_t g = 0; g < device_.size(); ++g) {
      for (const std::int64_t slot : batch.view(static_cast<int>(g)).kv.slots) {
        at(device_[g], slot) = {};
      }
    }
  }

  // Every key that a query of the batch sees is that of its request. Throws naming the first that
  // is not.
  using TokensOf = std::function<std::span<const Token>(const ScheduledSequence&)>;
  void check(const ScheduledBatch& batch, const TokensOf& tokens_of) {
    for (std::size_t g = 0; g < device_.size(); ++g) {
      const BatchView view = batch.view(static_cast<int>(g));
      const std::int64_t window = blocks_.groups[g].mask.window_left;
      for (std::size_t s = 0; s < batch.sequences().size(); ++s) {
        const ScheduledSequence& sequence = batch.sequences()[s];
        const std::span<const Token> tokens = tokens_of(sequence);
        const std::int64_t first = window < 0 ? 0 : sequence.first_position - window;
        const std::int64_t length = sequence.first_position + sequence.num_tokens;
        for (std::int64_t p = std::max<std::int64_t>(first, 0); p < length; ++p) {
          const std::int64_t block =
              view.kv.blocks.indices[view.kv.blocks.begins[static_cast<std::int64_t>(s)] +
                                     p / blocks_.block_size];
          const Slot& slot = at(device_[g], block * blocks_.block_size + p % blocks_.block_size);
          if (slot.position == p && slot.token == tokens[static_cast<std::size_t>(p)]) continue;
          throw std::logic_error("request " + std::to_string(sequence.request.value) + ", group " +
                                 std::to_string(g) + ": block " + std::to_string(block) +
                                 " does not hold position " + std::to_string(p));
        }
      }
    }
  }

 private:
  struct Slot {
    Token token = -1;
    std::int64_t position = -1;
  };
  using Slots = std::vector<Slot>;

  static Slot& at(Slots& slots, std::int64_t slot) {
    return slots.at(static_cast<std::size_t>(slot));
  }

  void copy(std::span<const BlockCopy> copies, Slots& src, Slots& dst) const {
    for (std::size_t i = copies.size(); i-- > 0;) {
      for (std::int64_t j = 0; j < blocks_.block_size; ++j) {
        at(dst, copies[i].dst * std::int64_t{blocks_.block_size} + j) =
            at(src, copies[i].src * std::int64_t{blocks_.block_size} + j);
      }
    }
  }

  BlockManagerOptions blocks_;
  std::vector<Slots> device_;  // [num_groups]
  std::vector<Slots> host_;
};

}  // namespace quire::test
