// SPDX-License-Identifier: Apache-2.0
// Which sanitizer a source is compiled under: GCC and Clang say it each in its own way.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_HAS_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
#define QUIRE_HAS_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIRE_HAS_ADDRESS_SANITIZER 1
#elif __has_feature(thread_sanitizer)
#define QUIRE_HAS_THREAD_SANITIZER 1
#endif
#endif
#if !defined(QUIRE_HAS_ADDRESS_SANITIZER)
#define QUIRE_HAS_ADDRESS_SANITIZER 0
#endif
#if !defined(QUIRE_HAS_THREAD_SANITIZER)
#define QUIRE_HAS_THREAD_SANITIZER 0
#endif

namespace quire {

inline constexpr bool kHasAddressSanitizer = QUIRE_HAS_ADDRESS_SANITIZER != 0;
inline constexpr bool kHasThreadSanitizer = QUIRE_HAS_THREAD_SANITIZER != 0;

}  // namespace quire
