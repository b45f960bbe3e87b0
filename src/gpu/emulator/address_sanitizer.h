// SPDX-License-Identifier: Apache-2.0
// What the emulator tells AddressSanitizer; nothing in builds without it.
#pragma once

#include <cstddef>

#include "base/sanitizers.h"

#if QUIRE_HAS_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace quire::simt::internal {

// Nobody may touch [address, address + bytes), or everybody may again.
inline void poison([[maybe_unused]] const void* address, [[maybe_unused]] std::size_t bytes) {
#if QUIRE_HAS_ADDRESS_SANITIZER
  __asan_poison_memory_region(address, bytes);
#endif
}
inline void unpoison([[maybe_unused]] const void* address, [[maybe_unused]] std::size_t bytes) {
#if QUIRE_HAS_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(address, bytes);
#endif
}

}  // namespace quire::simt::internal
