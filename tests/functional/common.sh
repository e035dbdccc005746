# Sourced by each suite: the program, the metric checker, and a fresh folder for the suite's results.
# shellcheck shell=bash
set -euo pipefail

PROJECT_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
GRPO_TRAIN=${GRPO_TRAIN:-$PROJECT_ROOT/build/cpu/grpo_train}

if [[ ! -x "$GRPO_TRAIN" ]]; then
  echo "$GRPO_TRAIN is missing; build it with: cmake --preset cpu && cmake --build --preset cpu" >&2
  exit 1
fi

# EXP_DIR is removed and made anew; the suite runs from the root, where the configs' paths start.
start_experiment() {
  rm -rf "$EXP_DIR"
  mkdir -p "$LOG_DIR"
  cd "$PROJECT_ROOT"
}

# Each argument is an expression over `data`; all must hold.
check_metrics() {
  python3 -B "$PROJECT_ROOT/tools/check_metrics.py" "$JSON_METRICS" "$@"
}

# The run's log must show that the intended path was taken.
require_in_log() {
  local pattern
  for pattern in "$@"; do
    if ! grep -Eq "$pattern" "$RUN_LOG"; then
      echo "$RUN_LOG has no line that matches: $pattern" >&2
      return 1
    fi
  done
}
