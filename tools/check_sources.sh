#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rules of the tree that no compiler checks; each line printed is one breach.
#   every source has its SPDX line and is ASCII; every header has #pragma once; no public header
#   includes a vendor's; every source and public header is named in a CMakeLists.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
breaches=0
report() { # report RULE < list of places
  local place
  while IFS= read -r place; do
    echo "$place: $1"
    breaches=$((breaches + 1))
  done
}

code=('*.h' '*.hpp' '*.inl' '*.c' '*.cc' '*.cu' '*.cuh')
scripts=('*.py' '*.sh' '*.cmake' '*CMakeLists.txt' Makefile tools/bootstrap .ci/run)
tracked() { git ls-files -z -- "$@"; }

report "no SPDX line" < <(
  tracked "${code[@]}" "${scripts[@]}" |
    xargs -0 -r grep -L -m1 'SPDX-License-Identifier: Apache-2.0' || true)
report "not ASCII" < <(
  tracked "${code[@]}" "${scripts[@]}" '*.md' '*.json' |
    LC_ALL=C xargs -0 -r grep -nP '[^\x00-\x7F]' | cut -d: -f1,2 || true)
report "no #pragma once" < <(
  tracked '*.h' '*.hpp' '*.cuh' |
    xargs -0 -r grep -L -m1 '^#pragma once' || true)
report "a public header includes a vendor's" < <(
  tracked include |
    xargs -0 -r grep -nE '#include *[<"](cuda|hip/|torch|ATen|openvino|dnnl|oneapi)' |
    cut -d: -f1,2 || true)

# A source that no build file names is never compiled, and its tests never run. Lists name files
# relative to their own folder, to src/ or to include/.
named=$(git ls-files -- '*CMakeLists.txt' | while IFS= read -r list; do
  folder=${list%CMakeLists.txt}
  grep -oE '[A-Za-z0-9_./-]+\.(h|hpp|c|cc|cu)\b' "$list" |
    sed -n "s|.*|$folder&\nsrc/&\ninclude/&|p" || true
done)
report "in no CMakeLists.txt" < <(
  git ls-files -- '*.c' '*.cc' '*.cu' 'include/quire/*' | grep -vxF -f <(echo "$named") || true)

[ $breaches = 0 ] || {
  echo "$breaches breaches of the source rules"
  exit 1
}
