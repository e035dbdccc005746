#!/usr/bin/env bash
# Formats the C++ and CUDA sources with clang-format 14; --check only tells which ones differ (exit code 1).
# usage: tools/format.sh [--check]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

clang_format=$(command -v clang-format-14 || command -v clang-format || true)
if [[ -z "$clang_format" ]] || ! "$clang_format" --version | grep -q ' version 14\.'; then
  echo "format.sh: clang-format 14 is needed (Debian package: clang-format-14)" >&2
  exit 1
fi
mode=(-i)
if [[ "${1:-}" == --check ]]; then
  mode=(--dry-run -Werror)
  shift
fi
if [[ $# != 0 ]]; then
  echo "format.sh: '$1' is not an option; usage: tools/format.sh [--check]" >&2
  exit 2
fi
find app generation model parallel rl tests tools -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 -r -n 16 -P "$(nproc)" "$clang_format" "${mode[@]}"
