#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel from a clean copy of the tracked files, installs it into a folder of its own and
# uses it from there: check_wheel.sh PYTHON. PYTHON is one of tools/bootstrap test: it has the build
# requirements that pip would install, at the versions that pyproject.toml pins, and the compiler
# cache knows its paths. Reports the size of the wheel and the time of its import.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 limit_bytes=20000000 limit_ms=100

pins=$(sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",' | tr '-' '_')
for pin in $pins; do
  tr '-' '_' <tools/requirements-test.txt | grep -qxF "$pin" || {
    echo "pyproject.toml asks for $pin, tools/requirements-test.txt for another version" >&2
    exit 1
  }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source"
git ls-files -z | xargs -0 cp --parents -t "$work/source"
# Build trees of equal depth, warnings and the compiler's name as in the other jobs: most is compiled
# already.
CC=cc CXX=c++ "$python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings build-dir=build/wheel --config-settings cmake.define.QUIRE_WERROR=ON \
  --wheel-dir "$work" "$work/source"
wheel=$(echo "$work"/*.whl)
bytes=$(stat -c %s "$wheel")
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$work/site" "$wheel"

cd "$work"
export PYTHONPATH=$work/site PYTHONDONTWRITEBYTECODE=1
ms=$("$python" - <<'PYTHON'
import subprocess
import sys

code = "import time; t = time.process_time(); import quire; print((time.process_time() - t) * 1e3)"
times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
         for _ in range(10)]
print(f"{min(times):.0f}")
PYTHON
)
echo "wheel: $bytes bytes (at most $limit_bytes); import: $ms ms of CPU time, best of 10 (at most $limit_ms)"
[ "$bytes" -le "$limit_bytes" ]
[ "$ms" -le "$limit_ms" ]

"$python" - <<'PYTHON'
import pathlib

import numpy as np
import quire
import quire.compat

assert pathlib.Path(quire.__file__).is_relative_to(pathlib.Path.cwd()), quire.__file__
k = np.ones((3, 4, 2, 16), np.float32)
out = quire.attend(k[0, :1], k, k.copy(), [0, 1], [9], [[0, 1, 2]])
assert out.shape == (1, 2, 16) and np.allclose(out, 1)
package = pathlib.Path(quire.__file__).parent
assert {"py.typed", "_quire.pyi"} <= {path.name for path in package.iterdir()}
PYTHON
[ "$(site/bin/quire --version)" = "$("$python" -c 'import quire; print(quire.__version__)')" ]
site/bin/quire info >/dev/null
site/bin/quire check --suite smoke --backend cpu --filter 'decode/*' >/dev/null
echo "the installed package and its command work"
