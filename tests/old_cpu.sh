#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The command starts and computes rightly on a CPU without AVX: old_cpu.sh QUIRE. The CPU is
# qemu's baseline model. Exits 77 where qemu-user is absent.
set -euo pipefail
qemu=$(command -v qemu-x86_64-static || command -v qemu-x86_64) || {
  echo "SKIP: qemu-x86_64 is not installed (Debian: qemu-user-static)"
  exit 77
}
run() { "$qemu" -cpu qemu64 "$@"; }
run "$1" check --backend cpu --suite smoke --filter 'decode/*,mixed/*'
refusal=$(QUIRE_CPU_ISA=avx2 run "$1" check --backend cpu --suite smoke 2>&1) && {
  echo "QUIRE_CPU_ISA=avx2 was not refused on a CPU without it" >&2
  exit 1
}
echo "$refusal"
grep -q 'needs avx2' <<<"$refusal"
