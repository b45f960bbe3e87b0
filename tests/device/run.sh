#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles one file of this folder for a device: run.sh cuda|gfx... FILE [OPTION]... For cuda the
# result is a program, which runs and says itself what a machine without a device leaves out; for a
# GPU of AMD it is an object that must hold kernels and use nothing that it does not define. Exits 77
# where the compiler is absent.
set -euo pipefail
target=$1 file=$2
shift 2
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
    nvcc=${CUDACXX:-$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v nvcc)} ||
      skip "nvcc is not installed (CUDA toolkit)"
    # The runtime library of an installed wheel is where nvcc does not look.
    "$nvcc" -std=c++20 -arch=sm_90 --expt-relaxed-constexpr -Werror all-warnings \
      -L"${nvcc%/bin/*}/lib" "${includes[@]}" -o "$work/program" "$here/$file"
    "$work/program"
    ;;
  gfx*)
    clang=$(command -v clang++-19) || skip "clang++-19 is not installed (Debian: clang-19)"
    # Neither the vendor's headers nor its device library; with -c alone this calls the vendor's
    # linker. The kernels join conditions by & where a branch would cost more, and ask for loops to
    # be unrolled that this compiler may find too large.
    "$clang" -std=c++20 -x hip --offload-arch="$target" -nogpulib -nogpuinc --cuda-device-only \
      -Wall -Wextra -Werror -Wno-bitwise-instead-of-logical -Wno-pass-failed -O1 \
      "${includes[@]}" "$@" -S -Xclang -emit-obj -o "$work/unit.o" "$here/$file"
    readelf -Ws "$work/unit.o" >"$work/symbols"
    ! awk '$7 == "UND" && $8 != "" { print "not defined for the device: " $8 }' "$work/symbols" |
      grep . >&2 || exit 1
    kernels=$(grep -c '\.kd$' "$work/symbols") || {
      echo "no kernel in $file" >&2
      exit 1
    }
    echo "$kernels kernels, $(wc -c <"$work/unit.o") bytes of $target code"
    ;;
  *)
    echo "unknown device target: $target" >&2
    exit 2
    ;;
esac
