#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the format of every tracked C, C++ and device source; with --fix formats them in place.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(--dry-run -Werror)
[ "${1:-}" != --fix ] || mode=(-i)
git ls-files -z -- '*.h' '*.hpp' '*.inl' '*.c' '*.cc' '*.cu' '*.cuh' |
  xargs -0 -r -n 16 -P "$(nproc)" clang-format --style=file "${mode[@]}"
