#!/usr/bin/env bash
# Builds the fuzz targets with clang, AddressSanitizer and UBSan, and runs each for a while, one after the other.
# usage: tools/fuzz.sh [SECONDS of each target, 60] [target ...]
# Targets: safetensors tokenizer_json yaml_config jsonl model_config. They start from tests/fuzz/seeds/TARGET and from
# what earlier runs found (build/fuzz/corpus/TARGET). A finding lies in build/fuzz/findings, and the exit code is 1:
# fix it, then keep the input as a seed, which fuzz_test replays in every build.
# Needs Debian's clang and libclang-rt-dev (or CLANG=path to clang++).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh" "$@"
cd "$(dirname "$0")/.."

seconds="${1:-60}"
shift || true
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
  targets=(safetensors tokenizer_json yaml_config jsonl model_config)
fi

clang="${CLANG:-clang++}"
if ! command -v "$clang" >/dev/null; then
  echo "fuzz: $clang is missing; apt-get install clang libclang-rt-dev" >&2
  exit 1
fi
tools/install_packages.sh
build=build/fuzz
cmake -G Ninja -B "$build" -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -gline-tables-only" \
  -DGRPO_SANITIZE=fuzzer-no-link,address,undefined
ninja -C "$build" "${targets[@]/#/fuzz_}"

# Inputs pass through files: memory is the faster place for them.
if [[ -w /dev/shm && -z "${TMPDIR:-}" ]]; then
  export TMPDIR=/dev/shm
fi
failed=0
for target in "${targets[@]}"; do
  corpus="$build/corpus/$target"
  mkdir -p "$corpus" "$build/findings"
  echo "== $target, $seconds seconds"
  # A file's own limits are above what mutation finds by itself: 64 KiB reach every branch.
  "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -max_len=65536 -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$build/findings/$target-" \
    "$corpus" "tests/fuzz/seeds/$target" || failed=1
done
exit "$failed"
