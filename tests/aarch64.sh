#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library compiles for aarch64, where the CPU backend has its portable level: aarch64.sh
# SOURCE_LIST, a file with one path a line. Exits 77 where the cross compiler is absent.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cxx=$(command -v aarch64-linux-gnu-g++) || {
  echo "SKIP: aarch64-linux-gnu-g++ is not installed (Debian: g++-aarch64-linux-gnu)"
  exit 77
}
# The headers of OpenSSL are those of this machine: nothing is linked.
host=/usr/include
xargs -n 1 -P "$(nproc)" "$cxx" -std=c++20 -O1 -fsyntax-only -Wall -Wextra -Werror -Iinclude -Isrc \
  -idirafter "$host" -idirafter "$host/x86_64-linux-gnu" \
  <"$1"
echo "$(wc -l <"$1") sources"
