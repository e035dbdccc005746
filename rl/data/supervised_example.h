// SupervisedExample: a prompt with the response to learn, as one sequence of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "rl/data/prompt_dataset.h"

namespace grpo::rl {

struct SupervisedExample {
  std::vector<int32_t> tokens;  // prompt, response, end token
  int64_t first_target;         // tokens from here on are learnt: response and end token

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_targets() const { return num_tokens() - first_target; }
};

SupervisedExample supervised_example(const PromptExample& example, int32_t end_token);

// The examples at `count` running positions of the dataset, in their order.
std::vector<SupervisedExample> draw_supervised(const PromptDataset& dataset, int64_t first_position,
                                               int64_t count, int64_t seed, int32_t end_token);

// Learnt tokens of all examples.
double num_targets(const std::vector<SupervisedExample>& examples);

}  // namespace grpo::rl
