// SPDX-License-Identifier: Apache-2.0
// A program outside quire's tree: it links the installed library and checks that the headers it was
// compiled with belong to it.
#include <quire/version.h>

#include <cstdio>
#include <string>

int main() {
  const std::string expected = std::to_string(QUIRE_VERSION_MAJOR) + "." +
                               std::to_string(QUIRE_VERSION_MINOR) + "." +
                               std::to_string(QUIRE_VERSION_PATCH);
  std::printf("headers %s, library %s\n", expected.c_str(), quire::version());
  return expected == quire::version() ? 0 : 1;
}
