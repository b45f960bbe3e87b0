// SPDX-License-Identifier: Apache-2.0
// Whether an address sanitizer watches. A write outside of an allocation ends a program there,
// which is how it is found; without one a test finds it.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_HAS_ADDRESS_SANITIZER true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIRE_HAS_ADDRESS_SANITIZER true
#endif
#endif
#if !defined(QUIRE_HAS_ADDRESS_SANITIZER)
#define QUIRE_HAS_ADDRESS_SANITIZER false
#endif

namespace quire::test {
inline constexpr bool kHasAddressSanitizer = QUIRE_HAS_ADDRESS_SANITIZER;
}
