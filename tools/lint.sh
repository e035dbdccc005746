#!/usr/bin/env bash
# Runs clang-tidy (checks: .clang-tidy) over the sources of preset cpu: silent and 0 when there is
# nothing to say. Version 16 at least: older ones cannot read the standard library's <ranges>.
# usage: tools/lint.sh [FILE.cpp ...]     without files: all of them
# environment: CLANG_TIDY (the program), JOBS (how many at once)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tidy=${CLANG_TIDY:-}
for name in clang-tidy-{21,20,19,18,17,16} clang-tidy; do
  [[ -n $tidy ]] || tidy=$(command -v "$name" || true)
done
if [[ -z $tidy ]]; then
  echo "lint.sh: clang-tidy is needed (Debian package: clang-tidy-19)" >&2
  exit 1
fi
version=$("$tidy" --version | grep -o 'version [0-9]*' | grep -o '[0-9]*')
if ((version < 16)); then
  echo "lint.sh: $tidy is of version $version; needed: 16 or later (Debian package: clang-tidy-19)" >&2
  exit 1
fi
commands=build/cpu/compile_commands.json
[[ -f $commands ]] || cmake --preset cpu >/dev/null

# Deprecation is the compiler's to report; here std::stable_sort of libstdc++ would be.
if [[ $# -gt 0 ]]; then
  printf '%s\n' "$@"
else
  grep -o '"file": "[^"]*"' $commands | cut -d '"' -f 4 |
    grep -E "^$PWD/(app|generation|model|parallel|rl)/" | sort -u
fi | tr '\n' '\0' | xargs -0 -r -n 1 -P "${JOBS:-$(nproc)}" "$tidy" --quiet -p build/cpu \
  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations 2> >(grep -Ev '[0-9]+ warnings? (generated|treated as errors?)' >&2)
