// Rollout: every (prompt, sample) of a step drawn exactly once over all ranks, rewarded, and known
// to every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "generation/engine.h"
#include "model/core/communicator.h"
#include "model/tokenizer/tokenizer.h"
#include "rl/data/prompt_dataset.h"
#include "rl/data/reward.h"

namespace grpo::rl {

// Where the kept tokens of a sequence are and how many ids they have; every rank knows it.
struct KeptSource {
  int32_t rank = -1;  // that drew the sequence; -1: no filter was on
  bool has_thresholds = false;
  int64_t num_ids = 0;
};

struct RolloutSequence {
  int64_t group;    // place of the prompt among the step's prompts
  int32_t sample;   // within the group
  int64_t example;  // line of the dataset
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t> response_tokens;
  std::vector<float> generation_logprobs;  // one a response token
  KeptSource kept_source = {};
  // Of the response tokens, on the rank that drew them and on those that work on them; or empty.
  ops::KeptTokens kept = {};
  generation::FinishReason finish_reason;
  double reward;
  std::vector<double> reward_components;
  std::string text;  // the response, without special tokens

  int64_t length() const {
    return static_cast<int64_t>(prompt_tokens.size() + response_tokens.size());
  }
};

struct RolloutPlan {
  std::vector<const PromptExample*> prompts;  // of the step, in group order
  int64_t first_draw_index;                   // of group 0 over the whole run
  int64_t num_samples;                        // a prompt
};

// Collective over `world`: this rank draws its contiguous share of the (prompt, sample) list,
// rewards it, and all ranks receive all sequences, ordered by (group, sample).
class Rollout {
 public:
  Rollout(generation::Engine& engine, const model::Tokenizer& tokenizer, const RewardSet& rewards,
          Communicator& world)
      : engine_(engine), tokenizer_(tokenizer), rewards_(rewards), world_(world) {}

  struct Times {
    double generation_seconds;
    double reward_seconds;
  };

  std::vector<RolloutSequence> run(const RolloutPlan& plan,
                                   const generation::SamplingParams& params, OpContext& ctx,
                                   const std::function<void(int64_t, int64_t)>& progress,
                                   Times& times);

 private:
  std::vector<RolloutSequence> rewarded(const RolloutPlan& plan,
                                        std::vector<generation::Completion> completions) const;

  generation::Engine& engine_;
  const model::Tokenizer& tokenizer_;
  const RewardSet& rewards_;
  Communicator& world_;
};

}  // namespace grpo::rl
