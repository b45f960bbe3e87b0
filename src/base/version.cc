// SPDX-License-Identifier: Apache-2.0
#include "quire/version.h"

#define QUIRE_TEXT(x) #x
#define QUIRE_EXPANDED_TEXT(x) QUIRE_TEXT(x)

namespace quire {

const char* version() noexcept {
  return QUIRE_EXPANDED_TEXT(QUIRE_VERSION_MAJOR) "." QUIRE_EXPANDED_TEXT(
      QUIRE_VERSION_MINOR) "." QUIRE_EXPANDED_TEXT(QUIRE_VERSION_PATCH);
}

}  // namespace quire
