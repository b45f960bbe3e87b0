#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset and builds targets of it: build.sh PRESET [-DNAME=VALUE]... [TARGET]...
# The configure output is shown only when it fails or says that something is left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
definitions=() targets=()
for argument in "$@"; do
  case $argument in
    -D*) definitions+=("$argument") ;;
    *) targets+=("$argument") ;;
  esac
done

mkdir -p "build/$preset"
log=build/$preset/configure.log
cmake --preset "$preset" "${definitions[@]}" >"$log" 2>&1 || {
  cat "$log" >&2
  exit 1
}
grep -E 'left out|CMake Warning' "$log" || true
cmake --build --preset "$preset" --parallel "$(nproc)" ${targets:+--target "${targets[@]}"}
