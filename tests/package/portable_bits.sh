#!/usr/bin/env bash
# The demo of the portable build has the bits of the native build's: metrics, samples, weights and optimizer state, in
# float32 and bfloat16. On a CPU below the build's the program ends with one line.
# usage: tests/package/portable_bits.sh
# Builds the presets cpu and portable. The part about older CPUs needs qemu-x86_64 (Debian package qemu-user).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../tools/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for preset in cpu portable; do
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" --parallel "$(nproc)" --target grpo_train
done

run_demo() {  # PRESET PRECISION
  "build/$1/grpo_train" --config configs/demo_gtp2.yaml "logger.log_dir=$work/$1_$2" "policy.precision=$2" \
    warm_start.num_steps=40 grpo.max_num_steps=20 \
    checkpointing.enabled=true checkpointing.save_period=10 >"$work/$1_$2.log" 2>&1 ||
    { cat "$work/$1_$2.log" >&2; exit 1; }
}

for precision in float32 bfloat16; do
  run_demo cpu "$precision"
  run_demo portable "$precision"
  echo "portable_bits: $precision"
  ./tools/compare_runs.py --same-layout "$work/cpu_$precision" "$work/portable_$precision"
  count=0
  while IFS= read -r file; do
    cmp "$work/cpu_$precision/$file" "$work/portable_$precision/$file"
    count=$((count + 1))
  done < <(cd "$work/cpu_$precision" && find checkpoints -name '*.safetensors' | sort)
  if [[ $count == 0 ]]; then
    echo "portable_bits: the run saved no weights to compare" >&2
    exit 1
  fi
  echo "portable_bits: $count files of weights and optimizer state are equal"
done

if ! command -v qemu-x86_64 >/dev/null; then
  echo "portable_bits: SKIPPED: the program on a CPU without AVX2 (needs qemu-x86_64, Debian package qemu-user)"
  exit 0
fi
status=0
line=$(qemu-x86_64 -cpu Nehalem build/portable/grpo_train --version 2>&1) || status=$?
wanted='grpo_train: error: this CPU has no avx2, which this build needs (compiled for x86-64-v3); build it on this machine'
if [[ $status != 1 || "$line" != "$wanted" ]]; then
  printf 'portable_bits: on a CPU without AVX2 the exit code is %d and the text is\n%s\nwanted: 1 and\n%s\n' \
    "$status" "$line" "$wanted" >&2
  exit 1
fi
echo "portable_bits: on a CPU without AVX2: $line"
