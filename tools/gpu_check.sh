#!/usr/bin/env bash
# Builds the operators with CUDA and runs their tests on this machine's first GPU; the last lines are a table.
# usage: tools/gpu_check.sh [--sanitize] [cmake options, such as -DCMAKE_CUDA_ARCHITECTURES=80]
# --sanitize runs the tests once more under compute-sanitizer (out-of-bounds accesses, races in shared memory).
# A test that is skipped counts as failed: there is a GPU to run it on. Logs: $OUT, or build/gpu_check/logs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sanitize=0
if [[ "${1:-}" == --sanitize ]]; then
  sanitize=1
  shift
fi

build=build/gpu_check
logs=${OUT:-$build/logs}
mkdir -p "$logs"

nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
if [[ ! -x "$nvcc" ]]; then
  echo "gpu_check: nvcc is needed; it is neither on the PATH nor at $nvcc" >&2
  exit 1
fi

# Not the preset's own folder: GRPO_OPERATORS_ONLY would stay in its cache.
cmake --preset cuda -B "$build" -DGRPO_OPERATORS_ONLY=ON "-DCMAKE_CUDA_COMPILER=$nvcc" "$@" >"$logs/configure.log" 2>&1 ||
  { tail -n 30 "$logs/configure.log" >&2; exit 1; }
cmake --build "$build" --parallel "$(nproc)" --target core_test ops_test >"$logs/build.log" 2>&1 ||
  { grep -A 20 -E 'FAILED|error' "$logs/build.log" | head -n 60 >&2; exit 1; }

table=$(printf '%-28s %7s %7s %7s %8s' run passed skipped failed seconds)
exit_code=0

# NAME FILTER PROGRAM [options]: runs the tests of a program, keeps the log and adds a line to the table.
run_tests() {
  local name=$1 filter=$2 status=0 passed skipped failed
  shift 2
  SECONDS=0
  "$@" "--gtest_filter=$filter" >"$logs/$name.log" 2>&1 || status=$?
  passed=$(grep -c '^\[       OK \]' "$logs/$name.log" || true)
  skipped=$(grep -c '^\[  SKIPPED \] .* ms)$' "$logs/$name.log" || true)
  failed=$(grep -c '^\[  FAILED  \] .* ms)$' "$logs/$name.log" || true)
  table+=$(printf '\n%-28s %7d %7d %7d %8d' "$name" "$passed" "$skipped" "$failed" "$SECONDS")
  if [[ $status != 0 || $skipped != 0 || $passed == 0 ]]; then
    exit_code=1
    table+=" exit code $status"
    grep -m 8 -E -B 8 '^\[  (FAILED |SKIPPED) \] .* ms\)$|^=+ (Error|Invalid)' "$logs/$name.log" ||
      tail -n 20 "$logs/$name.log"
  fi
}

on_gpu='*Cuda*:-*WithoutDevices*'
run_tests core_test "$on_gpu" "$build/tests/core_test"
run_tests ops_test "$on_gpu" "$build/tests/ops_test"
if [[ $sanitize == 1 ]]; then
  # Without the test that makes a kernel fail, and the one that asks for a petabyte.
  harmless="$on_gpu:*IndexOutOfRange*:*OutOfMemory*"
  for tool in memcheck racecheck; do
    run_tests "ops_test_$tool" "$harmless" compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/ops_test"
  done
fi

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1 || true
echo "$table"
exit $exit_code
