// SPDX-License-Identifier: Apache-2.0
// Where in the source a kernel called the emulator. Two words, so that it travels in registers.
#pragma once

namespace quire::simt {

struct Site {
  const char* file = "";
  int line = 0;
  static constexpr Site here(const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
  bool operator==(const Site&) const = default;
};

}  // namespace quire::simt
