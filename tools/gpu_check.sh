#!/usr/bin/env bash
# Builds the operators with CUDA and runs their tests on this machine's first GPU; the last lines are a table.
# usage: tools/gpu_check.sh [--sanitize | --cases] [--build DIR] [cmake options, such as -DCMAKE_CUDA_ARCHITECTURES=80]
# --sanitize runs the operator tests under compute-sanitizer instead: accesses out of bounds, races in shared memory,
# reads of memory that nothing wrote.
# --cases runs the failure cases of gathers, collective order, gradients, norms and refit on two GPUs instead: each makes
# ranks and connects them anew, which takes minutes. It needs --build.
# --build takes the programs of a finished build of preset cuda instead. If that holds the whole program, the golden
# cases, the model's and engine's tests, whole runs of one rank and the benchmark follow, on the GPU; with two GPUs also
# communication, layouts and a run of two ranks.
# A test that is skipped counts as failed: there is a GPU to run it on. Logs: $OUT, or build/gpu_check/logs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sanitize=0
cases=0
build=build/gpu_check
given_build=
while [[ "${1:-}" == --sanitize || "${1:-}" == --cases || "${1:-}" == --build ]]; do
  if [[ "$1" == --sanitize ]]; then
    sanitize=1
    shift
  elif [[ "$1" == --cases ]]; then
    cases=1
    shift
  else
    given_build=${2:?gpu_check: --build needs a folder}
    shift 2
  fi
done
build=${given_build:-$build}
logs=${OUT:-build/gpu_check/logs}
mkdir -p "$logs"

build_operators() {
  local nvcc
  nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
  if [[ ! -x "$nvcc" ]]; then
    echo "gpu_check: nvcc is needed; it is neither on the PATH nor at $nvcc" >&2
    exit 1
  fi

  # Not the preset's own folder: GRPO_OPERATORS_ONLY would stay in its cache.
  cmake --preset cuda -B "$build" -DGRPO_OPERATORS_ONLY=ON "-DCMAKE_CUDA_COMPILER=$nvcc" "$@" >"$logs/configure.log" 2>&1 ||
    { tail -n 30 "$logs/configure.log" >&2; exit 1; }
  cmake --build "$build" --parallel "$(nproc)" --target core_test ops_test >"$logs/build.log" 2>&1 ||
    { { grep -A 20 -E 'FAILED|[Ee]rror' "$logs/build.log" || tail -n 30 "$logs/build.log"; } | head -n 60 >&2; exit 1; }
}

if [[ $cases == 1 && ! -x "$given_build/grpo_train" ]]; then
  echo "gpu_check: --cases needs --build with the folder of a finished build of preset cuda" >&2
  exit 1
fi
if [[ -z "$given_build" ]]; then
  build_operators "$@"
fi

table=$(printf '%-28s %7s %7s %7s %8s' run passed skipped failed seconds)
exit_code=0

# NAME STATUS: adds a line on the tests in NAME's log to the table.
count_tests() {
  local name=$1 status=$2 passed skipped failed
  passed=$(grep -c '^\[       OK \]' "$logs/$name.log" || true)
  skipped=$(grep -c '^\[  SKIPPED \] .* ms)$' "$logs/$name.log" || true)
  failed=$(grep -c '^\[  FAILED  \] .* ms)$' "$logs/$name.log" || true)
  table+=$(printf '\n%-28s %7d %7d %7d %8d' "$name" "$passed" "$skipped" "$failed" "$SECONDS")
  if [[ $status != 0 || $skipped != 0 || $passed == 0 ]]; then
    exit_code=1
    table+=" exit code $status"
    grep -m 8 -E -B 8 '^\[  (FAILED |SKIPPED) \] .* ms\)$|^=+ (Error|Warning|Invalid|Uninitialized)' "$logs/$name.log" ||
      tail -n 20 "$logs/$name.log"
  fi
}

# NAME FILTER PROGRAM [options]: runs the tests of a program, keeps the log and adds a line to the table.
run_tests() {
  local name=$1 filter=$2 status=0
  shift 2
  SECONDS=0
  "$@" "--gtest_filter=$filter" >"$logs/$name.log" 2>&1 || status=$?
  count_tests "$name" "$status"
}

# TOOL TEST: an operator test under a tool of compute-sanitizer, on the GPU of its slot among those that run at once.
sanitize() {
  local tool=$1 test=$2 status=0
  local -a options=(--tool "$tool" --error-exitcode 9)
  if [[ $tool == racecheck ]]; then
    options+=(--kernel-name kns=grpo)  # it takes barriers of the matrix library for races, and fails beside it
  fi
  local log=$logs/sanitizer/$tool.${test//\//_}.log
  CUDA_VISIBLE_DEVICES=$((slot % gpus)) compute-sanitizer "${options[@]}" \
    "$build/tests/ops_test" "--gtest_filter=$test" >"$log" 2>&1 || status=$?
  # Some of what it finds it calls a warning, and ends with 0.
  if [[ $status != 0 ]] || grep -q -E 'SUMMARY: [1-9]' "$log"; then
    echo "$test $status" >>"$logs/sanitizer/$tool.failed"
  fi
}

# FILTER TOOL: a line for each test.
list_tests() {
  "$build/tests/ops_test" --gtest_list_tests "--gtest_filter=$1" |
    awk -v tool="$2" '/^[^ ]/ {suite = $1} /^  / {print tool, suite $1}'
}

# The operator tests under every tool, side by side on all GPUs, the slowest tool first.
run_sanitizer() {
  # Without the test that makes a kernel fail, and the one that asks for a petabyte.
  local harmless="$on_gpu:*IndexOutOfRange*:*OutOfMemory*"
  # Without the largest shapes of kernels that other tests run: it is a thousand times slower than they are.
  local small="$harmless:*CudaLinear*bfloat16*:*CudaLinearCandidates*:*CudaLinearRows*:*CudaLinearSplit*"
  small+=':*CudaLinear*_896_4864*:*EveryPrefixAndChunk/bfloat16_1024*:*EveryPrefixAndChunk/bfloat16_600*'
  local tool listed
  rm -rf "$logs/sanitizer"
  mkdir "$logs/sanitizer"
  { list_tests "$small" racecheck && list_tests "$harmless" memcheck && list_tests "$harmless" initcheck; } \
    >"$logs/sanitizer/list"
  gpus=$(nvidia-smi --list-gpus | wc -l)
  export logs build gpus
  export -f sanitize
  SECONDS=0
  xargs --arg-file "$logs/sanitizer/list" --max-lines=1 --max-procs="$(nproc)" --process-slot-var=slot \
    bash -c 'sanitize "$0" "$1"'
  for tool in racecheck memcheck initcheck; do
    local name=ops_test_$tool status=0
    cat "$logs/sanitizer/$tool".*.log >"$logs/$name.log"
    listed=$(grep -c "^$tool " "$logs/sanitizer/list")
    if [[ -e $logs/sanitizer/$tool.failed || $(grep -c 'SUMMARY: 0 ' "$logs/$name.log") != "$listed" ]]; then
      status=9
      cat "$logs/sanitizer/$tool.failed" || true
    fi
    count_tests "$name" "$status"
  done
}

# NAME COMMAND ...: a program that tells by its exit code alone.
run_program() {
  local name=$1 status=0
  shift
  SECONDS=0
  "$@" >"$logs/$name.log" 2>&1 || status=$?
  table+=$(printf '\n%-28s %7d %7d %7d %8d' "$name" "$((status == 0))" 0 "$((status != 0))" "$SECONDS")
  if [[ $status != 0 ]]; then
    exit_code=1
    table+=" exit code $status"
    tail -n 20 "$logs/$name.log"
  fi
}

# Gates of the configs make a run fail whose generation and training differ in one bit.
run_loop() {
  export GRPO_TEST_DEVICE=cuda
  run_program golden_cases "$build/tests/golden_test" tests/data/golden
  run_tests model_test 'Transformer*:Models/Transformer*' "$build/tests/model_test"
  run_tests generation_test 'Engine*:All/Engine*:CachedRows*' "$build/tests/generation_test"
  run_tests rl_test 'Runs/OneRank*:*InjectedFault*:NumericsMode*:-*FakeDevice*' "$build/tests/rl_test"
  local precision
  for precision in float32 bfloat16; do
    run_program "demo_$precision" "$build/grpo_train" --config configs/demo_gtp2.yaml parallel.gtp_remat=1 \
      parallel.device=cuda policy.precision=$precision grpo.max_num_steps=20 logger.overwrite=true \
      logger.log_dir="$logs/demo_$precision"
  done
  run_program qwen0p5b_gtp1 "$build/grpo_train" --config configs/qwen0p5b_gtp1.yaml grpo.max_num_steps=5 \
    logger.overwrite=true logger.log_dir="$logs/qwen0p5b_gtp1"
  run_program failures tests/gpu/failures.sh "$build"
}

# What needs two GPUs.
run_pair() {
  run_tests communication 'Ranks/DeviceCommunicator*/2' "$build/tests/parallel_test"
  run_tests device_layouts 'Cases/DeviceLayouts*gtp2_dp1*:Cases/DeviceLayouts*gtp1_dp2*' "$build/tests/rl_test"
  run_tests dying_ranks 'FailingRun.ARank*' "$build/tests/app_test"
  run_program qwen0p5b_gtp2 "$build/grpo_train" --config configs/qwen0p5b_gtp2.yaml grpo.max_num_steps=5 \
    logger.overwrite=true logger.log_dir="$logs/qwen0p5b_gtp2"
  run_program gtp_changes_no_bit tools/compare_runs.py "$logs/qwen0p5b_gtp1" "$logs/qwen0p5b_gtp2"
}

# Tests of more than two ranks among them run on the CPU where there are but two GPUs.
run_cases() {
  export GRPO_TEST_DEVICE=cuda
  run_tests gathers_and_gradients 'GtpPass*:Gtp/GtpPass*:GtpGradients*:GtpStorage*' "$build/tests/parallel_test"
  run_tests sums_and_norms '*PolicyUpdate*:Optimizer.*:RolloutTest*:*GtpRuns*' "$build/tests/rl_test"
  run_tests refit 'RefitTest*:All/RefitLayouts*:Layouts/RefitOrder*:WeightsIo*:*CheckpointLayouts*' \
    "$build/tests/parallel_test"
  run_tests refit_generation 'All/RefitGeneration*' "$build/tests/generation_test"
}

on_gpu='*Cuda*:-*WithoutDevices*'
if [[ $sanitize == 1 ]]; then
  run_sanitizer
elif [[ $cases == 1 ]]; then
  run_cases
else
  run_tests core_test "$on_gpu" "$build/tests/core_test"
  run_tests ops_test "$on_gpu" "$build/tests/ops_test"
  if [[ -x "$build/grpo_train" ]]; then
    run_loop
    if [[ $(nvidia-smi --list-gpus | wc -l) -ge 2 ]]; then
      run_pair
    fi
    run_program benchmark "$build/grpo_benchmark" --device=cuda --kernels "--json=$logs/benchmark.json"
    grep -E '^[*|]' "$logs/benchmark.log" || true
  fi
fi

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1 || true
echo "$table"
exit $exit_code
