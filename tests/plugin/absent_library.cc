// SPDX-License-Identifier: Apache-2.0
// A library that a test plug-in needs and the dynamic loader does not find.
#include "quire/export.h"

extern "C" QUIRE_API int quire_test_absent();

int quire_test_absent() {
  return 0;
}
