#!/usr/bin/env bash
# Supervised fine-tuning over two ranks with GTP-sharded weights, then GRPO from its checkpoint: the first rollout finds the
# weights that the last supervised step left.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

EXP_NAME=$(basename "${BASH_SOURCE[0]}" .sh)
EXP_DIR=$PROJECT_ROOT/runs/functional/$EXP_NAME
LOG_DIR=$EXP_DIR/logs
JSON_METRICS=$LOG_DIR/metrics.json
RUN_LOG=$EXP_DIR/run.log

MAX_STEPS=100

start_experiment
"$GRPO_TRAIN" \
  --config configs/demo_sft_gtp2.yaml \
  sft.max_num_steps=$MAX_STEPS \
  logger.log_dir="$LOG_DIR" \
  "$@" 2>&1 | tee "$RUN_LOG"

check_metrics \
  'data["train/loss"]["1"] > 2' \
  'mean(data["train/loss"], -6, -1) < 0.8' \
  "data[\"validation/loss\"][\"$MAX_STEPS\"] < 0.8" \
  'min(data["train/grad_norm"]) > 0' \
  'min(data["gtp/gathers"]) > 0' \
  'min(data["gtp/reduce_scattered_bytes"]) > 0'
require_in_log "best checkpoint step_$MAX_STEPS"

"$GRPO_TRAIN" \
  --config configs/demo_gtp2.yaml \
  grpo.max_num_steps=2 \
  warm_start.num_steps=0 \
  warm_start.checkpoint="$LOG_DIR/checkpoints" \
  logger.log_dir="$EXP_DIR/grpo" \
  "$@" 2>&1 | tee -a "$RUN_LOG"

JSON_METRICS=$EXP_DIR/grpo/metrics.json
check_metrics \
  'data["train/reward"]["1"] > 0.05' \
  'min(data["train/token_mult_prob_error"]) == 1' \
  'max(data["train/token_mult_prob_error"]) == 1'
