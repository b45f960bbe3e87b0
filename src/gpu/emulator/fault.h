// SPDX-License-Identifier: Apache-2.0
// A fault as the emulator finds it, before it is put into words on the host's stack. It is thrown,
// and caught where the kernel called the emulator (Launch::enter): no frame of a kernel is unwound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "gpu/emulator/access_history.h"
#include "gpu/emulator/launch.h"
#include "gpu/emulator/site.h"

namespace quire::simt::internal {

struct Fault {
  FaultKind kind = FaultKind::kCheckFailed;
  int thread = -1;  // linear, of the block that runs
  std::string text;
  AccessKind access = AccessKind::kRead;  // with address and size where it is about an access
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  const void* pc = nullptr;  // where the kernel was, if known
  Site site = {};            // the same, from the call; preferred where its line is not 0
  std::optional<EarlierAccess> earlier = std::nullopt;
};

}  // namespace quire::simt::internal
