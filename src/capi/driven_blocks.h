// SPDX-License-Identifier: Apache-2.0
// The manager behind a handle: to look at, or to change, which a manager that a scheduler drives
// does not allow.
#pragma once

#include "capi/handles.h"

namespace quire::capi {

inline const BlockManager& blocks_of(const quire_block_manager* manager) {
  return open(manager, "manager").blocks->manager;
}

inline BlockManager& own_blocks_of(quire_block_manager* manager) {
  ManagedBlocks& blocks = *open(manager, "manager").blocks;
  require(!blocks.is_driven, "manager: a scheduler drives it, so nobody else may change it");
  return blocks.manager;
}

}  // namespace quire::capi
