// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "quire/device.h"
#include "quire/prepared_batch.h"

namespace quire {

WorkspaceBuffer::WorkspaceBuffer(DeviceMemory& memory, const WorkspaceSize& size)
    : memory_(memory) {
  require(size.host_bytes >= 0, "workspace: negative host_bytes ", size.host_bytes);
  require(size.device_bytes >= 0, "workspace: negative device_bytes ", size.device_bytes);
  workspace_.size = size;
  // Nothing asked for is no allocation: the pointer stays null.
  if (size.host_bytes > 0) workspace_.host = memory_.allocate_host(size.host_bytes);
  if (size.device_bytes == 0) return;
  try {
    workspace_.device = memory_.allocate(size.device_bytes);
  } catch (...) {
    if (workspace_.host != nullptr) memory_.free_host(workspace_.host);
    throw;
  }
}

WorkspaceBuffer::~WorkspaceBuffer() {
  if (workspace_.device != nullptr) memory_.free(workspace_.device);
  if (workspace_.host != nullptr) memory_.free_host(workspace_.host);
}

}  // namespace quire
