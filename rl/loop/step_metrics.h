// What a step measured, turned into metrics under NeMo-RL's names. Definitions: README, "Metrics".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/refit/refit.h"
#include "parallel/store/sharded_parameter_store.h"
#include "rl/config/run_config.h"
#include "rl/loop/policy_update.h"
#include "rl/loop/rollout.h"
#include "rl/objective/advantage.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

// Agreement of the two log-probabilities of every response token: generation's and the pre-update
// training forward's.
struct TokenAgreement {
  double sum_exp_abs = 0;  // of exp(|training - generation|)
  int64_t num_checked = 0;
  int64_t num_mismatched = 0;  // 32-bit patterns that differ
  int64_t num_sets_differing =
      0;  // recomputed sets of kept tokens that differ from the stored ones

  void add(const std::vector<float>& training, const std::vector<float>& generation);
  double token_mult_prob_error() const { return sum_exp_abs / static_cast<double>(num_checked); }
};

struct StepTimes {
  double total = 0;
  double prepare_for_generation = 0;
  double transfer_and_update_weights = 0;
  double generation = 0;
  double reward_calculation = 0;
  double policy_and_reference_logprobs = 0;
  double policy_training = 0;
};

struct StepRecord {
  std::vector<RolloutSequence> sequences;
  int64_t weights_version = 0;     // optimizer updates before the rollout
  int64_t first_prompt_index = 0;  // of group 0 over the whole run
  GroupAdvantages advantages;
  std::vector<SequenceSignals> signals;  // previous log-probabilities always among them
  std::vector<UpdateResult> updates;
  TokenAgreement agreement;
  parallel::RefitReport refit{};
  parallel::GtpCounters gtp;  // of this step
  StepTimes times;
  double learning_rate = 0;  // of the last update
};

void add_rollout_metrics(MetricSet& metrics, const StepRecord& record,
                         const std::vector<std::string>& reward_names);
void add_training_metrics(MetricSet& metrics, const StepRecord& record);
// Refit, times and speed.
void add_system_metrics(MetricSet& metrics, const StepRecord& record, int world_size);

// What describes this rank alone: weights gathered during the step.
void add_gtp_metrics(MetricSet& metrics, const parallel::GtpCounters& gtp);

}  // namespace grpo::rl
