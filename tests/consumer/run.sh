#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build tree, moves the result, and builds and runs project/ against it, once through the
# CMake package and once through pkg-config: run.sh BUILD_DIR CMAKE CXX
set -euo pipefail
build=$1 cmake=$2 cxx=$3
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
project=$source/tests/consumer/project
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/installed" >"$work/install.log"
mv "$work/installed" "$work/moved"
prefix=$work/moved
"$prefix/bin/quire" --version

echo "== no installed text names the build or the source tree"
if grep -rIlF -e "$build/" -e "$source/include" -e "$source/src" "$prefix"; then
  echo "the files above do" >&2
  exit 1
fi

echo "== find_package(quire)"
"$cmake" -S "$project" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" || {
  cat "$work/configure.log"
  exit 1
}
"$cmake" --build "$work/cmake"
"$work/cmake/consumer"

echo "== pkg-config"
pc_file=$(find "$prefix" -name quire.pc)
export PKG_CONFIG_PATH=${pc_file%/*}
read -ra flags < <(pkg-config --cflags --libs quire)
"$cxx" -std=c++20 "$project/main.cc" "${flags[@]}" -o "$work/consumer"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir quire) "$work/consumer"

echo "== C, through pkg-config"
"${CC:-cc}" -std=c11 -Wall -Wextra -pedantic -Werror "$source/examples/c/engine.c" "${flags[@]}" \
  -o "$work/c_engine"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir quire) "$work/c_engine" >/dev/null

for plugin in $(find "$prefix" -name 'libquire_*.so'); do
  echo "== ${plugin##*/} exports its entry alone"
  exported=$(nm -D --defined-only "$plugin" | awk '{ print $3 }')
  [ "$exported" = quire_plugin ] || {
    echo "$exported" >&2
    exit 1
  }
done

library=$(find "$prefix" -name libquire.so)
if [ -n "$library" ]; then
  echo "== every function that the library exports is quire's"
  if nm -DC --defined-only "$library" | awk '$2 == "T" { $1 = $2 = ""; print }' |
    grep -vE '^ *(non-virtual thunk to |virtual thunk to )?quire(::|_)'; then
    echo "the names above are not" >&2
    exit 1
  fi
fi
