#!/usr/bin/env bash
# The demo at gtp_remat 1, 2 and 3: weights, metrics and samples are those of one rank, bit for bit.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

EXP_NAME=$(basename "${BASH_SOURCE[0]}" .sh)
EXP_DIR=$PROJECT_ROOT/runs/functional/$EXP_NAME
LOG_DIR=$EXP_DIR/logs

start_experiment
for gtp_remat in 1 2 3; do
  RUN_LOG=$EXP_DIR/gtp$gtp_remat.log
  JSON_METRICS=$LOG_DIR/gtp$gtp_remat/metrics.json
  "$GRPO_TRAIN" \
    --config configs/demo_gtp2.yaml \
    parallel.gtp_remat=$gtp_remat \
    policy.sequence_packing.train_mb_multiple=3 \
    grpo.max_num_steps=20 \
    logger.log_dir="$LOG_DIR/gtp$gtp_remat" \
    "$@" 2>&1 | tee "$RUN_LOG"
  check_metrics \
    'min(data["train/token_mult_prob_error"]) == 1' \
    'max(data["train/token_mult_prob_error"]) == 1' \
    'min(data["train/grad_norm"]) > 0' \
    'min(data["refit/changed_elements"]) > 0' \
    "min(data[\"gtp/gathers\"]) > $((gtp_remat - 1)) or $gtp_remat == 1"
  if [[ $gtp_remat != 1 ]]; then
    "$PROJECT_ROOT/tools/compare_runs.py" "$LOG_DIR/gtp1" "$LOG_DIR/gtp$gtp_remat"
  fi
done
