#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs pytest on this folder: run.sh PYTHON RESULTS_XML. Exits 77 where PYTHON is empty.
set -euo pipefail
python=$1 results=$2
if [ -z "$python" ]; then
  echo "SKIP: QUIRE_PYTHON is not set (tools/bootstrap test makes an environment with pytest)"
  exit 77
fi
cd "$(dirname "${BASH_SOURCE[0]}")"
exec "$python" -B -m pytest -q -rs -p no:cacheprovider --junitxml="$results" .
