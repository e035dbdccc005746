#!/usr/bin/env bash
# What goes wrong around GPUs ends a run with one line of error and the right exit code, in time. Needs a GPU; with two
# and NCCL also what goes wrong between them. The last lines are a table.
# usage: tests/gpu/failures.sh BUILD
# BUILD is the folder of a finished build of preset cuda.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tools/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=${1:?failures: needs the folder of a build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
table=$(printf '%-24s %5s %8s  %s' failure exit seconds says)

# NAME EXIT_CODE SECONDS TEXT COMMAND...: the command ends with that code, at most so late, and its errors are one line
# that has the text.
expect() {
  local name=$1 code=$2 seconds=$3 text=$4 status=0 errors verdict=''
  shift 4
  SECONDS=0
  timeout --signal=KILL 120 "$@" >"$work/out" 2>"$work/err" || status=$?
  errors=$(<"$work/err")
  if [[ $status != "$code" || $SECONDS -gt $seconds || $errors != *"$text"* || $(wc -l <<<"$errors") != 1 ]]; then
    failed=1
    verdict="  WRONG: wanted exit $code in $seconds s with: $text"
  fi
  table+=$(printf '\n%-24s %5d %8d  %s%s' "$name" "$status" "$SECONDS" "$errors" "$verdict")
}

# Before the library path that is set already.
with_path() { echo "LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; }

demo_options=(--config configs/demo_gtp2.yaml parallel.device=cuda parallel.timeout_s=5
  logger.overwrite=true "logger.log_dir=$work/run" warm_start.num_steps=2 grpo.max_num_steps=5)
demo=("$build/grpo_train" "${demo_options[@]}")

expect 'no GPU' 2 10 'no CUDA device' env CUDA_VISIBLE_DEVICES= "${demo[@]}" parallel.gtp_remat=1
expect 'driver too old' 2 10 'the driver of this machine knows CUDA up to 11.8, this build needs ' \
  env "$(with_path "$build/tests/driver_stand_in")" STAND_IN_DRIVER_VERSION=11080 "${demo[@]}" parallel.gtp_remat=1
expect 'build of another GPU' 2 10 'this build holds kernels for 7.5' \
  "$build/tests/grpo_train_sm75" "${demo_options[@]}" parallel.gtp_remat=1
expect 'out of memory' 1 60 "out of memory in phase 'setup': kv_cache asked for " \
  "$build/grpo_train" --config configs/qwen0p5b_gtp1.yaml logger.overwrite=true "logger.log_dir=$work/run" \
  grpo.num_generations_per_prompt=16 policy.train_global_batch_size=256 policy.max_total_sequence_length=32768 \
  policy.generation.max_batch_size=512 policy.generation.max_new_tokens=32000 \
  policy.sequence_packing.train_mb_tokens=32768 policy.sequence_packing.logprob_mb_tokens=32768
grep -q 'NOT ENOUGH MEMORY' "$work/out" || { failed=1; echo 'no warning of too little memory'; }

between_gpus() {
  local real ranks rank call
  local -a stood_in
  real=$(LD_DEBUG=libs "${demo[@]}" grpo.max_num_steps=1 2>&1 >/dev/null | sed -n 's/.*calling init: \(.*libnccl\.so\.2\)$/\1/p' |
    head -n 1)
  if [[ -z "$real" ]]; then
    echo "failures: a run on two GPUs loads no libnccl.so.2 here" >&2
    exit 1
  fi
  stood_in=(env "$(with_path "$build/tests/nccl_stand_in")" "STAND_IN_REAL_NCCL=$real")
  mkdir "$work/broken"
  touch "$work/broken/libnccl.so.2"

  expect 'NCCL unusable' 2 15 'NCCL cannot be loaded' env "$(with_path "$work/broken")" "${demo[@]}"
  expect 'NCCL too old' 2 15 "this machine's NCCL is 2.17.0; needed: 2.18.0 or newer" \
    "${stood_in[@]}" STAND_IN_VERSION=21700 "${demo[@]}"
  for rank in 0 1; do
    for call in 1 40; do
      expect "rank $rank hangs, call $call" 5 40 "rank " \
        "${stood_in[@]}" STAND_IN_HANGING_RANK=$rank STAND_IN_HANGING_CALL=$call "${demo[@]}"
    done
  done

  ranks=$((gpus + 1))
  expect 'too few GPUs' 2 20 "local rank $gpus has no GPU of its own, this machine has $gpus" \
    "${demo[@]}" "parallel.gtp_remat=$ranks" "grpo.num_prompts_per_step=$ranks" grpo.num_generations_per_prompt=2 \
    "policy.train_global_batch_size=$((2 * ranks))" "warm_start.global_batch_size=$ranks"
  expect 'two ranks on one GPU' 2 20 'ranks 0 and 1 would share GPU' env CUDA_VISIBLE_DEVICES=0 "${demo[@]}"
}

gpus=$(nvidia-smi --list-gpus | wc -l)
if [[ $gpus -ge 2 ]]; then
  between_gpus
fi

echo "$table"
exit $failed
