#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles one file of this folder for a device: run.sh cuda|hip FILE. For cuda the result is a
# program, which runs and says itself what a machine without a device leaves out. Exits 77 where the
# compiler is absent.
set -euo pipefail
target=$1 file=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
includes=(-I"$here/../../include" -I"$here/../../src")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip() {
  echo "SKIP: $*"
  exit 77
}

case $target in
  cuda)
    nvcc=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v nvcc) ||
      skip "nvcc is not installed (CUDA toolkit)"
    "$nvcc" -std=c++20 -arch=sm_90 --expt-relaxed-constexpr -Werror all-warnings \
      "${includes[@]}" -o "$work/program" "$here/$file"
    "$work/program"
    ;;
  hip)
    clang=$(command -v clang++-19) || skip "clang++-19 is not installed (Debian: clang-19)"
    # Neither the vendor's headers nor its device library; -S because an object needs its linker.
    "$clang" -std=c++20 -x hip --offload-arch=gfx90a -nogpulib -nogpuinc --cuda-device-only \
      -Wall -Wextra -Werror -O1 "${includes[@]}" -S -o "$work/unit.s" "$here/$file"
    echo "$(wc -l <"$work/unit.s") lines of gfx90a assembly"
    ;;
  *)
    echo "unknown device target: $target" >&2
    exit 2
    ;;
esac
