#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Number formats against the compiler's own _Float16 and __bf16: number_formats_clang.sh FILE, a file
# of this folder. Exits 77 where Clang 19 or its runtime library is absent.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
clang=$(command -v clang++-19) || {
  echo "SKIP: clang++-19 is not installed (Debian: clang-19)"
  exit 77
}
# GCC 12's runtime has no conversion to __bf16; Clang's own has.
runtime=$("$clang" --rtlib=compiler-rt -print-libgcc-file-name)
if [ ! -f "$runtime" ]; then
  echo "SKIP: the runtime of Clang 19 is not installed (Debian: libclang-rt-19-dev)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$clang" --rtlib=compiler-rt -std=c++20 -O2 -Wall -Wextra -Werror -Iinclude -Isrc \
  -o "$work/test" "tests/$1"
"$work/test"
