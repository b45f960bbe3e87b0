#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds one test program with Clang 19 and its own runtime library, and runs it: clang19.sh FILE,
# relative to this folder. Exits 77 where either is absent.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip() {
  echo "SKIP: $*"
  exit 77
}

clang=$(command -v clang++-19) || skip "clang++-19 is not installed (Debian: clang-19)"
[ -e "$("$clang" --rtlib=compiler-rt -print-libgcc-file-name)" ] ||
  skip "the runtime library of clang++-19 is not installed (Debian: libclang-rt-19-dev)"
"$clang" -std=c++20 -O2 --rtlib=compiler-rt -Wall -Wextra -Werror -I"$here/../include" \
  -I"$here/../src" "$here/$1" -o "$work/program"
"$work/program"
