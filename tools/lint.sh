#!/usr/bin/env bash
# Runs clang-tidy (checks: .clang-tidy) over the sources of preset cpu.
# usage: tools/lint.sh [FILE.cpp ...]     without files: all of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-tidy >/dev/null; then
  echo "lint.sh: clang-tidy is needed (Debian package: clang-tidy)" >&2
  exit 1
fi
if [[ ! -f build/cpu/compile_commands.json ]]; then
  cmake --preset cpu
fi
if [[ $# -gt 0 ]]; then
  printf '%s\0' "$@"
else
  find app generation model parallel rl -name '*.cpp' -print0
fi | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy --quiet -p build/cpu \
  --extra-arg=-Wno-unknown-warning-option 2> >(grep -v ' warnings\? generated' >&2)
