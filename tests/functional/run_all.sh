#!/usr/bin/env bash
# Runs the regression suites and prints a table; exits 1 when one fails.
# usage: [FAST=1] tests/functional/run_all.sh [grpo_train options and key.path=value for every suite ...]
# FAST=1 runs only the suites marked fast. GRPO_TRAIN names another binary than build/cpu/grpo_train.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tools/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")" || exit

options=("$@")
results=()
num_failed=0

run_test() {  # [fast] SCRIPT
  local is_fast=0
  if [[ "$1" == fast ]]; then
    is_fast=1
    shift
  fi
  if [[ "${FAST:-0}" == 1 && $is_fast == 0 ]]; then
    results+=("skipped  $1 (FAST=1)")
    return
  fi
  local start=$SECONDS
  echo "== $1"
  if "./$1" "${options[@]}"; then
    results+=("passed   $1 ($((SECONDS - start)) s)")
  else
    results+=("FAILED   $1 ($((SECONDS - start)) s)")
    num_failed=$((num_failed + 1))
  fi
}

run_test fast grpo_demo_gtp2.sh
run_test fast sft_demo_gtp2.sh
run_test fast gtp_changes_no_bit.sh

echo "== summary"
printf '%s\n' "${results[@]}"
[[ $num_failed == 0 ]]
