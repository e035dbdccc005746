#include "app/commands/score_command.h"

// grpo_train score: log-probabilities of given token sequences under a Hugging Face model.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "app/config/inference_config.h"
#include "app/launch/rank_session.h"
#include "app/output/run_lock.h"
#include "app/text/text_file.h"
#include "app/text/token_lines.h"
#include "model/device_context.h"
#include "parallel/checkpoint/weights_io.h"
#include "parallel/comm/rank_device.h"
#include "rl/config/resolve_config.h"
#include "rl/loop/sequence_scorer.h"
#include "rl/models/model_source.h"

namespace grpo::app {

namespace {

// A first token that is given, then tokens that are scored.
std::vector<rl::RolloutSequence> as_sequences(const std::vector<std::vector<int32_t>>& lines) {
  std::vector<rl::RolloutSequence> sequences;
  for (const std::vector<int32_t>& tokens : lines) {
    rl::RolloutSequence& sequence = sequences.emplace_back();
    sequence.prompt_tokens.assign(tokens.begin(), tokens.begin() + 1);
    sequence.response_tokens.assign(tokens.begin() + 1, tokens.end());
  }
  return sequences;
}

void write_scores(const std::string& path, const std::vector<std::vector<int32_t>>& lines,
                  const rl::SequenceLogprobs& scores) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const float logprob : scores.unfiltered[i]) {
      if (!std::isfinite(logprob)) {
        throw NonFiniteError(fmt::format("a log-probability of input {} is {}", i + 1, logprob));
      }
    }
    text += fmt::format("{{\"tokens\":[{}],\"logprobs\":[{}]}}\n", fmt::join(lines[i], ","),
                        fmt::join(scores.unfiltered[i], ","));
  }
  write_whole_file(path, text);
}

ExitCode score_on_rank(const ScoreOptions& options, const InferenceConfig& config,
                       const parallel::Mesh& mesh, RankContext& context) {
  context.world.set_phase("score", 0);
  const rl::ModelSource source = rl::open_model_directory(options.model_dir);
  const auto tokenizer = find_tokenizer(config.policy.tokenizer.name, options.model_dir);
  const auto lines = read_token_lines(options.input_path,
                                      {.text_key = "text",
                                       .vocab_size = source.config.vocab_size,
                                       .max_tokens = source.config.max_position_embeddings},
                                      tokenizer.get());
  int64_t longest = 1;
  for (const auto& tokens : lines) longest = std::max(longest, static_cast<int64_t>(tokens.size()));

  model::DeviceContext device(
      parallel::choose_device(config.parallel.device, context.environment.local_rank, context.world)
          .device,
      config.numerics.operators());
  const auto attachment = context.world.attach_device(device.allocator);
  const auto parameters = model::make_transformer_parameters(source.config, 0.0f);
  parallel::ShardedParameterStore store(
      "policy", parameters.specs,
      parallel::make_training_groups(context.world, mesh, config.parallel.gtp_alignment),
      rl::compute_dtype(config.policy.precision, source), parallel::Gradients::kNone,
      device.allocator);
  const parallel::DeviceFailureGuard guard(*attachment);
  parallel::load_weights(store, *source.weights);
  const rl::SequencePackingConfig& packing = config.policy.sequence_packing;
  model::Transformer transformer(
      source.config, parameters, store,
      {.max_positions = longest, .head_chunk_rows = packing.logprob_chunk_tokens},
      device.allocator);
  std::vector<rl::RolloutSequence> sequences = as_sequences(lines);
  const rl::SequenceLogprobs scores =
      rl::score_sequences(transformer, store.groups(), sequences,
                          {.inv_temperature = 1.0f,
                           .max_tokens = std::max(longest, packing.logprob_mb_tokens),
                           .applies_filter = false,
                           .filter_check = nullptr},
                          device.ctx);
  if (context.world.rank() == 0) write_scores(options.output_path, lines, scores);
  store.groups().world.communicator().barrier();
  return ExitCode::kDone;
}

}  // namespace

int run_score(const ScoreOptions& options) {
  refuse_output_over_input(options.input_path, options.output_path);
  ConfigOrigins origins;
  InferenceConfig config = load_inference_config(options.model_dir, options.overrides, &origins);
  const RankPlan plan = plan_ranks(options.num_local_ranks, config.parallel,
                                   std::filesystem::absolute(options.output_path).parent_path());
  with_origins(origins, [&] { rl::resolve_mesh(config.parallel, plan.world_size); });
  const parallel::Mesh mesh = config.parallel.mesh();
  if (!plan.environment || plan.environment->rank == 0) {
    check_writable("--output: folder",
                   std::filesystem::absolute(options.output_path).parent_path());
  }
  return run_ranks(plan, [&](RankContext& context) {
    return with_origins(origins, [&] { return score_on_rank(options, config, mesh, context); });
  });
}

}  // namespace grpo::app
