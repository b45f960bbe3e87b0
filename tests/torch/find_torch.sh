#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cmake/find_torch.cmake takes the libtorch that it should, and says what it did: find_torch.sh TORCH
# PYTHON. TORCH is the torch folder of a wheel, PYTHON an interpreter that has it or nothing.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
torch=$(cd "$1" && pwd) python=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat >CMakeLists.txt <<CMAKE
cmake_minimum_required(VERSION 3.25)
project(find_torch LANGUAGES CXX)
include($source/cmake/find_torch.cmake)
quire_find_torch()
message(STATUS "taken: [\${QUIRE_TORCH_LIB}]")
CMAKE
# Headers of a version, and a library that is none.
make_torch() {
  mkdir -p "$1"/{lib,include/ATen,include/torch/csrc/api/include/torch}
  touch "$1"/lib/libtorch_cpu.so "$1"/include/ATen/ATen.h
  printf '#define TORCH_VERSION_%s\n' "MAJOR $2" "MINOR $3" "PATCH 0" \
    >"$1"/include/torch/csrc/api/include/torch/version.h
}
make_torch "$work/old" 2 4
make_torch "$work/broken" 2 99

# expect TEXT [cmake option]...: a configuration says that.
expect() {
  local text=$1
  shift
  rm -rf build
  cmake -S . -B build "$@" >log 2>&1 || {
    cat log
    exit 1
  }
  grep -qF -- "$text" log || {
    echo "cmake $* does not say: $text"
    cat log
    exit 1
  }
}

expect "taken: []"
expect "taken: [$torch/lib]" -DQUIRE_TORCH_DIR="$torch"
expect "torch: left out, there is no libtorch_cpu.so in $work/absent/lib" -DQUIRE_TORCH_DIR="$work/absent" \
  -DQUIRE_FIND_TORCH=ON -DCMAKE_PREFIX_PATH="$torch"
expect "taken: [$torch/lib]" -DQUIRE_FIND_TORCH=ON -DCMAKE_PREFIX_PATH="$torch"
expect "found by Torch_DIR: $torch/lib" -DQUIRE_FIND_TORCH=ON -DTorch_DIR="$torch/share/cmake/Torch" \
  -DCMAKE_PREFIX_PATH="$work/old"
expect "is not taken: its version 2.4.0 is below" -DQUIRE_FIND_TORCH=ON -DCMAKE_PREFIX_PATH="$work/old"
expect "is not taken: a program does not link with it" -DQUIRE_FIND_TORCH=ON \
  -DCMAKE_PREFIX_PATH="$work/broken"
[ -z "$python" ] ||
  expect "found by $python: $torch/lib" -DQUIRE_FIND_TORCH=ON -DQUIRE_TORCH_PYTHON="$python"
echo "libtorch is found as documented"
