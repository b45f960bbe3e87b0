#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Renews tests/capi/libquire.abi, what the C headers promise to programs that are compiled already.
#   update_abi.sh                  after additions: functions, constants, fields at the end of structs
#   update_abi.sh --incompatible   after a change that breaks programs: raise the version with it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
baseline=tests/capi/libquire.abi
export CC=${CC:-gcc}
if [ -e $baseline ] && [ "${1:-}" != --incompatible ]; then
  status=0
  tools/abi.py compare $baseline include || status=$?
  [ $status != 1 ] || {
    echo "not renewed; see the rules in include/quire/quire.h, or use --incompatible" >&2
    exit 1
  }
fi
tools/abi.py dump include $baseline
