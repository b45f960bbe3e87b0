// SPDX-License-Identifier: Apache-2.0
// The inside of a BlockManager, for tests that compare or damage it. The library does not use this.
#pragma once

#include "kv/block_manager_state.h"
#include "quire/block_manager.h"

namespace quire {

struct BlockManagerPeek {
  static const BlockManager::State& state(const BlockManager& manager) { return *manager.state_; }
  static BlockManager::State& state(BlockManager& manager) { return *manager.state_; }
};

}  // namespace quire
