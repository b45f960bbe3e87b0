// SPDX-License-Identifier: Apache-2.0
// What the emulator tells AddressSanitizer; nothing in builds without it.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_SIMT_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIRE_SIMT_ASAN
#endif
#endif

#if defined(QUIRE_SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace quire::simt::internal {

// Nobody may touch [address, address + bytes), or everybody may again.
inline void poison([[maybe_unused]] const void* address, [[maybe_unused]] std::size_t bytes) {
#if defined(QUIRE_SIMT_ASAN)
  __asan_poison_memory_region(address, bytes);
#endif
}
inline void unpoison([[maybe_unused]] const void* address, [[maybe_unused]] std::size_t bytes) {
#if defined(QUIRE_SIMT_ASAN)
  __asan_unpoison_memory_region(address, bytes);
#endif
}

}  // namespace quire::simt::internal
