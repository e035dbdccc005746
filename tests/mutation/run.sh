#!/usr/bin/env bash
# Mutation tests: every line of mutants.txt breaks the code once and must turn its test red.
# usage: tests/mutation/run.sh [MUTANT ...]
set -euo pipefail
exec python3 -B "$(dirname "${BASH_SOURCE[0]}")/run_mutants.py" "$@"
