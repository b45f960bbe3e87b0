#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs pytest on this folder: run.sh RESULTS_XML [PYTHON [pytorch]]. Exits 77 without a PYTHON. The
# folder pytorch needs PyTorch and runs only when it is named.
set -euo pipefail
results=$1 python=${2:-}
if [ -z "$python" ]; then
  echo "SKIP: QUIRE_PYTHON is not set (tools/bootstrap test makes an environment with pytest)"
  exit 77
fi
folder=(--ignore=pytorch .)
[ "${3:-}" != pytorch ] || folder=(pytorch)
cd "$(dirname "${BASH_SOURCE[0]}")"
exec "$python" -B -m pytest -q -rs -p no:cacheprovider --junitxml="$results" "${folder[@]}"
