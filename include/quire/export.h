// SPDX-License-Identifier: Apache-2.0
// Visibility of what crosses the library's border; everything else is hidden.
#pragma once

#define QUIRE_API __attribute__((visibility("default")))
