// SPDX-License-Identifier: Apache-2.0
// The version of quire, said once: the build reads it from here. Semantic versioning; 0.x may
// change anything. Also C, for quire/quire.h.
#pragma once

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0

#include "quire/export.h"

#ifdef __cplusplus
namespace quire {

// "major.minor.patch" of the library that is linked, which may differ from the macros above.
QUIRE_API const char* version() noexcept;

}  // namespace quire
#endif
