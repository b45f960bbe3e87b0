#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C interface has not changed under programs that are compiled already:
# abi_test.sh LIBRARY COMPILER COMPILER_NAME. Compares the headers with libquire.abi, the library
# with the headers, and then proves on changed copies of the headers that changes are found.
set -euo pipefail
library=$1 name=$3
export CC=$2
[[ $name == "GNU 12."* ]] || {
  echo "SKIP: the baseline is that of GCC 12, this is $name"
  exit 77
}
command -v abidiff >/dev/null || {
  echo "SKIP: abidiff was not found (Debian: abigail-tools)"
  exit 77
}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
baseline=$source/tests/capi/libquire.abi
abi=$source/tools/abi.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== the headers are those of the baseline"
"$abi" compare "$baseline" "$source/include" || {
  echo "if that is meant: tools/update_abi.sh" >&2
  exit 1
}

echo "== the library exports the functions of the headers and no other of C"
diff <("$abi" names "$source/include") \
  <(nm -D --defined-only "$library" | awk '$3 ~ /^quire_/ { print $3 }' | LC_ALL=C sort)

echo "== and of C++ nothing but names of quire"
if nm -DC --defined-only "$library" | cut -c 20- |
  grep -vE '^((typeinfo|typeinfo name|vtable) for |non-virtual thunk to )?quire(::|_)'; then
  echo "the names above are not" >&2
  exit 1
fi

failures=0
# expect STATUS WHAT FILE SED: the status of the comparison after an edit of a header.
expect() {
  rm -rf "$work/include"
  cp -r "$source/include" "$work/include"
  sed -i "$4" "$work/include/quire/c/$3"
  ! cmp -s "$source/include/quire/c/$3" "$work/include/quire/c/$3" || {
    echo "$2: the edit changes nothing any more" >&2
    failures=$((failures + 1))
    return
  }
  local status=0
  "$abi" compare "$baseline" "$work/include" >"$work/report" 2>&1 || status=$?
  [ $status = "$1" ] || {
    echo "$2: status $status, not $1" >&2
    cat "$work/report" >&2
    failures=$((failures + 1))
  }
}
echo "== changes that break programs are found"
expect 1 "a field in the middle" attention.h 's/^  int64_t window_left;/  int64_t added;\n&/'
expect 1 "a field of another type" attention.h 's/^  float softcap;/  int32_t softcap;/'
expect 1 "two fields in another order" batch.h \
  's/^  int64_t max_kv_len; /  int64_t swapped; /; s/^  int64_t max_tokens; /  int64_t max_kv_len; /'
expect 1 "a field that is gone" info.h '/^  int32_t batch_invariant;/d'
expect 1 "a field at the end and another of another type" attention.h \
  's/^  int64_t chunk;/  double chunk;\n  int64_t added;/'
expect 1 "a function that is gone" copy.h 's/quire_copy_region/quire_copy_part/'
expect 1 "a parameter of another type" base.h 's/quire_text_free(char\* text)/quire_text_free(int64_t text)/'
expect 1 "one parameter more" base.h 's/quire_dtype_name(int32_t dtype)/quire_dtype_name(int32_t dtype, int32_t more)/'
expect 1 "a constant of another value" base.h 's/QUIRE_BF16 = 2/QUIRE_BF16 = 7/'
echo "== and additions are told from them"
expect 2 "a field at the end" attention.h 's/^  int64_t chunk;.*/&\n  int64_t added;/'
expect 2 "a new function" base.h 's/^QUIRE_API void quire_text_free/QUIRE_API void quire_added(void);\n&/'
expect 2 "a new constant" base.h 's/^  QUIRE_I8 = 5/&,\n  QUIRE_I4 = 6/'
[ $failures = 0 ]
