#!/usr/bin/env bash
# The demo run: GRPO over two ranks with GTP-sharded weights; trainer and generator must agree bit for bit.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

EXP_NAME=$(basename "${BASH_SOURCE[0]}" .sh)
EXP_DIR=$PROJECT_ROOT/runs/functional/$EXP_NAME
LOG_DIR=$EXP_DIR/logs
JSON_METRICS=$LOG_DIR/metrics.json
RUN_LOG=$EXP_DIR/run.log

MAX_STEPS=4

start_experiment
"$GRPO_TRAIN" \
  --config configs/demo_gtp2.yaml \
  grpo.max_num_steps=$MAX_STEPS \
  logger.log_dir="$LOG_DIR" \
  "$@" 2>&1 | tee "$RUN_LOG"

check_metrics \
  'max(data["train/token_mult_prob_error"]) < 1.05' \
  'min(data["train/token_mult_prob_error"]) == 1' \
  'max(data["train/token_mult_prob_error"]) == 1' \
  'max(data["train/mismatch_count"]) == 0' \
  'min(data["train/mismatch_tokens_checked"]) > 0' \
  'max(data["train/gen_kl_error"]) < 0.002' \
  'min(data["train/probs_ratio_clamped_min"]) > 0.79' \
  'max(data["train/probs_ratio_clamped_max"]) < 1.21' \
  'min(data["train/grad_norm"]) > 0'

# GTP and refit ran in every step, not just without complaint.
check_metrics \
  'min(data["gtp/gathers"]) > 0' \
  'min(data["gtp/gathered_bytes"]) > 0' \
  'min(data["gtp/reduce_scattered_bytes"]) > 0' \
  'min(data["refit/bytes"]) > 0' \
  'min(data["refit/changed_elements"]) > 0' \
  'min(data["refit/fingerprint_ok"]) == 1' \
  "data[\"train/loss\"][\"$MAX_STEPS\"] != 0"
require_in_log 'rank 1 -> tp 0, gtp_remat 1, dp 0'
