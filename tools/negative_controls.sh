#!/usr/bin/env bash
# Shows that the exactness check is able to fail: short runs of a config, without a fault, in fast mode, and with each
# fault of numerics.inject_fault; prints a table last. Exit code 1 when a fault is not noticed or a clean run is not exact.
# usage: tools/negative_controls.sh [--build DIR] [CONFIG] [key=value ...]
# CONFIG is configs/demo_gtp2.yaml unless given; on a GPU: --build build/cuda configs/qwen0p5b_gtp1.yaml
# --build takes grpo_train from a finished build; otherwise preset cpu is built. Runs: $OUT, or runs/negative_controls_*.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=
if [[ "${1:-}" == --build ]]; then
  build=${2:?negative_controls: --build needs a folder}
  shift 2
fi
config=configs/demo_gtp2.yaml
if [[ $# != 0 && "$1" != *=* ]]; then
  config=$1
  shift
fi
for word in "$@"; do
  if [[ "$word" != *=* ]]; then
    echo "negative_controls: '$word' is no key=value" >&2
    exit 2
  fi
done

if [[ -z "$build" ]]; then
  ./tools/install_packages.sh
  build=build/cpu
  cmake --preset cpu >/dev/null
  cmake --build --preset cpu --parallel "$(nproc)" --target grpo_train
fi
folder=${OUT:-}
if [[ -z "$folder" ]]; then
  mkdir -p runs
  folder=$(mktemp -d "runs/negative_controls_$(date +%Y%m%d_%H%M%S)_XXXX")
fi
mkdir -p "$folder"

overrides=("$@")
names=()

# NAME key=value ...: one run; the caller's words win over the tool's, but for the fault and the folder.
run() {
  local name=$1 status=0
  shift
  echo "negative_controls: $name"
  "$build/grpo_train" --config "$config" grpo.max_num_steps=3 gates=[] policy.generation.temperature=0.7 "$@" \
    "${overrides[@]}" "logger.log_dir=$folder/$name" logger.overwrite=true >"$folder/$name.log" 2>&1 || status=$?
  if [[ $status != 0 ]]; then
    tail -n 20 "$folder/$name.log" >&2
    echo "negative_controls: the run '$name' ended with exit code $status" >&2
    exit 1
  fi
  names+=("$name")
}

# The program's own list: "| `numerics.inject_fault` | `none` | one of none, split_k, ... | ... |".
faults=$("$build/grpo_train" --print-config-reference |
  sed -n 's/^| `numerics[.]inject_fault` | `none` | one of none, \([a-z0-9_, ]*\) |.*/\1/p' | tr -d ,)
if [[ -z "$faults" ]]; then
  echo "negative_controls: $build/grpo_train lists no faults" >&2
  exit 1
fi

run none
# A filter leaves many tokens alone with probability 1, which would hide faults; so it is on for its own fault, and for
# a clean run beside it.
run none_top_p policy.generation.top_p=0.9
run fast numerics.mode=fast
for fault in $faults; do
  if [[ "$fault" == top_p_one_side ]]; then
    run "$fault" policy.generation.top_p=0.9 "numerics.inject_fault=$fault"
  else
    run "$fault" "numerics.inject_fault=$fault"
  fi
done

echo
python3 -B tools/negative_controls_table.py "$folder" "${names[@]}"
