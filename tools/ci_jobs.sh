#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The jobs of `make test`: ci_jobs.sh [JOB]..., every job of default_jobs unless some are named.
# A job is a function job_NAME below. All run, also after a failure; the end is a table of minutes
# and outcomes, the names of failed jobs, the reason of every skip, and the sum of all cases.
# REQUIRES: tools/bootstrap has run for what the jobs need.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

default_jobs=(format release wheel asan tsan clang fuzz tidy)
tested=() # build trees that hold results

# run_ctest PRESET [ctest option]...: runs the tests of a preset and keeps their results.
run_ctest() {
  local preset=$1 launcher=()
  shift
  # The runtime of tsan cannot place its shadow memory where the kernel randomizes addresses widely.
  [ "$preset" != tsan ] || ! setarch -R true 2>/dev/null || launcher=(setarch -R)
  "${launcher[@]}" ctest --preset "$preset" --parallel "$(nproc)" --output-junit ctest.xml \
    --test-output-size-passed 65536 "$@"
}

job_format() { # format and the rules that no compiler checks
  tools/format.sh && tools/check_sources.sh
}

job_release() { # every test, as built for users; without nvcc the build fails
  tools/build.sh release -DQUIRE_CUDA=ON \
    -DQUIRE_PYTHON="$(tools/bootstrap --print-venv test)/bin/python" -DQUIRE_BUILD_PYTHON=ON all &&
    run_ctest release -LE '^torch$'
}

job_wheel() { # pip builds and installs the Python package from a clean copy
  tools/check_wheel.sh "$(tools/bootstrap --print-venv test)/bin/python"
}

# The host code under another compiler or a sanitizer, unit tests and smoke suite:
# host_tests PRESET [ctest option]...
host_tests() {
  tools/build.sh "$1" host_tests && run_ctest "$1" -L '^(unit|smoke)$' "${@:2}"
}

job_asan() { host_tests asan; }
job_tsan() { host_tests tsan -LE '^without_tsan$'; }
job_clang() { host_tests clang; }

job_fuzz() { # the corpus again, then a minute of new inputs
  tools/build.sh fuzz all && run_ctest fuzz -L '^fuzz$'
}

job_tidy() {
  cmake --preset release >/dev/null && python3 tools/tidy.py build/release
}

# Comparison with PyTorch, and the Python package on its tensors; with TRANSFORMERS, the package alone
# on that version of transformers.
job_torch() {
  local torch venv targets=(torch_tests quire_python) tests=(-L '^torch$')
  venv=$(tools/bootstrap --print-venv torch)
  torch=$(echo "$venv"/lib/python3*/site-packages/torch)
  if [ -n "${TRANSFORMERS:-}" ]; then
    venv=$(tools/bootstrap --print-venv "transformers-$TRANSFORMERS")
    targets=(quire_python)
    tests=(-R '^torch_python_tests$')
  fi
  tools/build.sh release -DQUIRE_TORCH_DIR="$torch" -DQUIRE_TORCH_PYTHON="$venv/bin/python" \
    -DQUIRE_PYTHON="$(tools/bootstrap --print-venv test)/bin/python" -DQUIRE_BUILD_PYTHON=ON \
    "${targets[@]}" && run_ctest release "${tests[@]}"
}

jobs=("$@")
[ ${#jobs[@]} -gt 0 ] || jobs=("${default_jobs[@]}")
for job in "${jobs[@]}"; do
  declare -F "job_$job" >/dev/null || {
    echo "unknown job: $job (there are: ${default_jobs[*]} torch)" >&2
    exit 2
  }
done

table="" failed=()
for job in "${jobs[@]}"; do
  printf '\n==== %s\n' "$job"
  case $job in
    torch) tree=build/release ;;
    *) tree=build/$job ;;
  esac
  rm -rf "$tree/ctest.xml" "$tree/results"
  start=$EPOCHREALTIME
  outcome=passed
  "job_$job" </dev/null || {
    outcome=FAILED
    failed+=("$job")
  }
  minutes=$(awk "BEGIN { print ($EPOCHREALTIME - $start) / 60 }")
  table+=$(printf '%-10s %6.2f min  %s' "$job" "$minutes" "$outcome")$'\n'
  [ ! -e "$tree/ctest.xml" ] || tested+=("$tree")
done

printf '\n==== summary\n%s' "$table"
[ ${#failed[@]} = 0 ] || echo "failed jobs: ${failed[*]}"
[ ${#tested[@]} = 0 ] || python3 tools/test_summary.py "${tested[@]}" || failed+=(tests)
[ ${#failed[@]} = 0 ]
