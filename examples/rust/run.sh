#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles engine.rs against libquire.so and runs it: run.sh FOLDER_OF_LIBRARY. Exits 77 without a
# Rust compiler.
set -euo pipefail
library=$1
command -v rustc >/dev/null || {
  echo "SKIP: rustc was not found (Debian: rustc)"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rustc --edition 2021 -D warnings -O -L "native=$library" -C "link-arg=-Wl,-rpath,$library" \
  -o "$work/engine" "$(dirname "${BASH_SOURCE[0]}")/engine.rs"
"$work/engine"
