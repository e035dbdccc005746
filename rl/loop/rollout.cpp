#include "rl/loop/rollout.h"

#include <chrono>
#include <utility>

#include "parallel/comm/host_collectives.h"
#include "rl/data/own_requests.h"
#include "rl/loop/rollout_codec.h"

namespace grpo::rl {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<RolloutSequence> Rollout::rewarded(
    const RolloutPlan& plan, std::vector<generation::Completion> completions) const {
  std::vector<RolloutSequence> sequences;
  for (generation::Completion& completion : completions) {
    const PromptExample& example = *plan.prompts[static_cast<size_t>(completion.tag)];
    RolloutSequence sequence{.group = completion.tag,
                             .sample = completion.sample_index,
                             .example = example.index,
                             .prompt_tokens = example.prompt_tokens,
                             .response_tokens = std::move(completion.tokens),
                             .generation_logprobs = std::move(completion.logprobs),
                             .kept_source = {},
                             .kept = std::move(completion.kept),
                             .finish_reason = completion.finish_reason,
                             .reward = 0,
                             .reward_components = {},
                             .text = {}};
    if (!sequence.kept.empty()) {
      sequence.kept_source = {.rank = world_.rank(),
                              .has_thresholds = sequence.kept.has_thresholds(),
                              .num_ids = sequence.kept.num_ids()};
    }
    sequence.text = tokenizer_.decode(sequence.response_tokens, true);
    RewardResult result = rewards_.score(
        {.prompt = example.prompt, .completion = sequence.text, .answer = example.answer});
    sequence.reward = result.total;
    sequence.reward_components = std::move(result.components);
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

std::vector<RolloutSequence> Rollout::run(const RolloutPlan& plan,
                                          const generation::SamplingParams& params, OpContext& ctx,
                                          const std::function<void(int64_t, int64_t)>& progress,
                                          Times& times) {
  const auto generation_start = std::chrono::steady_clock::now();
  std::vector<std::span<const int32_t>> prompts;
  for (const PromptExample* example : plan.prompts) prompts.emplace_back(example->prompt_tokens);
  std::vector<generation::Completion> completions = engine_.generate(
      own_requests(prompts, plan.first_draw_index, plan.num_samples, world_.size(), world_.rank()),
      params, ctx, progress);
  times.generation_seconds = seconds_since(generation_start);

  const auto reward_start = std::chrono::steady_clock::now();
  std::vector<RolloutSequence> own = rewarded(plan, std::move(completions));
  times.reward_seconds = seconds_since(reward_start);

  // Shares are contiguous and completions ordered, so rank order is (group, sample) order.
  std::vector<RolloutSequence> all;
  for (const std::vector<std::byte>& bytes :
       parallel::all_gather_bytes(world_, encode_sequences(own))) {
    for (RolloutSequence& sequence : decode_sequences(bytes)) all.push_back(std::move(sequence));
  }
  CHECK(all.size() == plan.prompts.size() * static_cast<size_t>(plan.num_samples),
        "{} sequences of {} prompts x {} samples", all.size(), plan.prompts.size(),
        plan.num_samples);
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].group * plan.num_samples + all[i].sample == static_cast<int64_t>(i),
          "sequence {} is sample {} of group {}", i, all[i].sample, all[i].group);
  }
  for (RolloutSequence& sequence : own) {
    const int64_t index = sequence.group * plan.num_samples + sequence.sample;
    all[static_cast<size_t>(index)].kept = std::move(sequence.kept);
  }
  times.generation_seconds = seconds_since(generation_start) - times.reward_seconds;
  return all;
}

}  // namespace grpo::rl
