#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles one file of this folder for a device: compile.sh cuda|hip FILE, from the repository root.
# With nvcc it becomes a program and runs. Exits 77 where the compiler is absent.
set -euo pipefail
target=$1 file=$2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#include "%s"\n' "$file" >"$work/unit.cu"

skip() {
  echo "SKIP: $*"
  exit 77
}

case $target in
  cuda)
    nvcc=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v nvcc) ||
      skip "nvcc is not installed (CUDA toolkit)"
    "$nvcc" -std=c++20 -arch=sm_90 -Werror all-warnings \
      -Iinclude -Isrc -Itests/device_headers -o "$work/unit" "$work/unit.cu"
    # The host's part runs everywhere, the device's where there is one.
    "$work/unit"
    ;;
  hip)
    clang=$(command -v clang++-19) || skip "clang++-19 is not installed (Debian: clang-19)"
    # Without the vendor's headers the compiler knows the attributes but not their usual names;
    # -S because a device object would need the vendor's linker.
    "$clang" -std=c++20 -x hip --offload-arch=gfx90a -nogpulib -nogpuinc --cuda-device-only \
      -D'__host__=__attribute__((host))' -D'__device__=__attribute__((device))' \
      -D'__global__=__attribute__((global))' -D'__shared__=__attribute__((shared))' \
      -Wall -Wextra -Werror -O1 -Iinclude -Isrc -Itests/device_headers -S -o "$work/unit.s" "$work/unit.cu"
    ;;
  *)
    echo "unknown device target: $target" >&2
    exit 2
    ;;
esac
