// SPDX-License-Identifier: Apache-2.0
// Whether this program has the hooks of hooks.cc: they say so before main().
#pragma once

namespace quire::simt::internal {

extern bool hooks_are_linked;

}  // namespace quire::simt::internal
