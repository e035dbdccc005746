#include "rl/data/supervised_example.h"

namespace grpo::rl {

SupervisedExample supervised_example(const PromptExample& example, int32_t end_token) {
  SupervisedExample supervised{.tokens = example.prompt_tokens,
                               .first_target = static_cast<int64_t>(example.prompt_tokens.size())};
  supervised.tokens.insert(supervised.tokens.end(), example.response_tokens.begin(),
                           example.response_tokens.end());
  supervised.tokens.push_back(end_token);
  return supervised;
}

std::vector<SupervisedExample> draw_supervised(const PromptDataset& dataset, int64_t first_position,
                                               int64_t count, int64_t seed, int32_t end_token) {
  std::vector<SupervisedExample> examples;
  examples.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    examples.push_back(supervised_example(
        dataset.at_position(first_position + i, static_cast<uint64_t>(seed)), end_token));
  }
  return examples;
}

double num_targets(const std::vector<SupervisedExample>& examples) {
  double sum = 0;
  for (const SupervisedExample& example : examples) {
    sum += static_cast<double>(example.num_targets());
  }
  return sum;
}

}  // namespace grpo::rl
