#!/usr/bin/env bash
# Builds grpo_train and runs the demo: GRPO on two local CPU ranks with GTP-sharded weights.
# usage: tools/demo.sh [grpo_train options and key.path=value ...]
# Paths in the options are relative to the repository's root. Results: runs/demo_<time>/.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh" "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./tools/install_packages.sh
cmake --preset cpu >/dev/null
cmake --build --preset cpu --parallel "$(nproc)" --target grpo_train

mkdir -p runs
log_dir=$(mktemp -d "runs/demo_$(date +%Y%m%d_%H%M%S)_XXXX")
exec build/cpu/grpo_train --config configs/demo_gtp2.yaml "logger.log_dir=$log_dir" "$@"
