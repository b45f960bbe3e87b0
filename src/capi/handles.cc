// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.h"

namespace quire::capi {

const char* handle_kind_name(std::uint64_t kind) noexcept {
  switch (static_cast<HandleKind>(kind)) {
    case HandleKind::kDestroyed:
      return "destroyed";
    case HandleKind::kBackend:
      return "a backend";
    case HandleKind::kPreparedBatch:
      return "a prepared batch";
    case HandleKind::kKvCache:
      return "a kv cache";
    case HandleKind::kPrompt:
      return "a prompt";
    case HandleKind::kBlockManager:
      return "a block manager";
    case HandleKind::kScheduler:
      return "a scheduler";
    case HandleKind::kInfo:
      return "an info";
  }
  return "no handle of quire";
}

}  // namespace quire::capi
