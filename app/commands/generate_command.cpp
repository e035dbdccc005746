#include "app/commands/generate_command.h"

// grpo_train generate: completions of prompts under a Hugging Face model, whole on every rank.
#include <fmt/ranges.h>

#include <algorithm>

#include "app/config/inference_config.h"
#include "app/launch/rank_session.h"
#include "app/output/run_lock.h"
#include "app/text/text_file.h"
#include "app/text/token_lines.h"
#include "generation/engine.h"
#include "model/device_context.h"
#include "model/files/json_text.h"
#include "parallel/checkpoint/weights_io.h"
#include "parallel/comm/host_collectives.h"
#include "parallel/comm/rank_device.h"
#include "rl/data/own_requests.h"
#include "rl/models/model_source.h"

namespace grpo::app {

namespace {

constexpr int64_t kMaxCompletions = int64_t{1} << 24;  // of all prompts

generation::SamplingParams sampling_params(const GenerateOptions& options,
                                           const generation::GenerationConfig& config,
                                           const model::ModelConfig& model,
                                           const model::Tokenizer* tokenizer) {
  return {.filter = config.filter(),
          .greedy = config.temperature == 0.0,
          .max_new_tokens = config.max_new_tokens,
          .stop_token_ids = rl::stop_tokens(config, model, tokenizer),
          .ignore_stop = config.ignore_eos,
          .seed = static_cast<uint64_t>(options.seed),
          .split = generation::DrawSplit::kTrain,
          .stores_kept_tokens = false};
}

std::string completion_line(const generation::Completion& completion,
                            const model::Tokenizer* tokenizer) {
  std::string text;
  if (tokenizer != nullptr) {
    text =
        fmt::format("\"text\":{},", model::json_string(tokenizer->decode(completion.tokens, true)));
  }
  const bool stopped = completion.finish_reason == generation::FinishReason::kStop;
  return fmt::format("{{\"tokens\":[{}],{}\"logprobs\":[{}],\"finish_reason\":\"{}\"}}\n",
                     fmt::join(completion.tokens, ","), text, fmt::join(completion.logprobs, ","),
                     stopped ? "stop" : "length");
}

ExitCode generate_on_rank(const GenerateOptions& options, const InferenceConfig& config,
                          RankContext& context) {
  context.world.set_phase("generate", 0);
  const rl::ModelSource source = rl::open_model_directory(options.model_dir);
  const auto tokenizer = find_tokenizer(config.policy.tokenizer.name, options.model_dir);
  const int64_t max_positions = source.config.max_position_embeddings;
  const auto prompts = read_token_lines(options.input_path,
                                        {.text_key = "prompt",
                                         .vocab_size = source.config.vocab_size,
                                         .max_tokens = max_positions - 1},
                                        tokenizer.get());
  int64_t longest = 1;
  for (const auto& tokens : prompts)
    longest = std::max(longest, static_cast<int64_t>(tokens.size()));
  const generation::GenerationConfig& g = config.policy.generation;
  const int64_t max_tokens = std::min(max_positions, longest + g.max_new_tokens);

  model::DeviceContext device(
      parallel::choose_device(config.parallel.device, context.environment.local_rank, context.world)
          .device,
      config.numerics.operators());
  const auto attachment = context.world.attach_device(device.allocator);
  const auto parameters = model::make_transformer_parameters(source.config, 0.0f);
  parallel::ShardedParameterStore store(
      "generation", parameters.specs, parallel::make_generation_groups(context.world),
      rl::compute_dtype(g.precision ? g.precision : config.policy.precision, source),
      parallel::Gradients::kNone, device.allocator);
  const parallel::DeviceFailureGuard guard(*attachment);
  parallel::load_weights(store, *source.weights);
  model::Transformer transformer(source.config, parameters, store,
                                 {.max_positions = max_tokens, .head_chunk_rows = 1},
                                 device.allocator);
  const auto num_prompts = static_cast<int64_t>(prompts.size());
  if (options.num_samples > kMaxCompletions / num_prompts) {
    throw ConfigError(fmt::format(
        "--num-samples is {} for {} prompts; allowed: {} completions in all, 1 to {}",
        options.num_samples, num_prompts, kMaxCompletions, kMaxCompletions / num_prompts));
  }
  const auto requests = rl::own_requests({prompts.begin(), prompts.end()}, 0, options.num_samples,
                                         context.world.size(), context.world.rank());
  int64_t num_sequences = 1;
  for (const auto& request : requests) {
    num_sequences += static_cast<int64_t>(request.sample_indices.size());
  }
  generation::check_cache_slots(g, max_tokens, num_sequences);
  generation::Engine engine(transformer,
                            {.max_sequence_tokens = max_tokens,
                             .max_batch_size = std::min(g.max_batch_size, num_sequences),
                             .page_size_tokens = g.page_size_tokens,
                             .prefill_chunk_tokens = g.prefill_chunk_tokens,
                             .enforce_eager = g.enforce_eager},
                            device.allocator);
  const auto params = sampling_params(options, g, source.config, tokenizer.get());
  std::string own;
  for (const auto& completion :
       engine.generate(requests, params, device.ctx, [](int64_t, int64_t) {})) {
    own += completion_line(completion, tokenizer.get());
  }
  Communicator& world = store.groups().world.communicator();
  std::string all;
  for (const auto& bytes : parallel::all_gather_bytes(world, std::as_bytes(std::span(own)))) {
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  if (context.world.rank() == 0) write_whole_file(options.output_path, all);
  world.barrier();
  return ExitCode::kDone;
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  refuse_output_over_input(options.input_path, options.output_path);
  ConfigOrigins origins;
  InferenceConfig config = load_inference_config(options.model_dir, options.overrides, &origins);
  const RankPlan plan = plan_ranks(options.num_local_ranks, config.parallel,
                                   std::filesystem::absolute(options.output_path).parent_path());
  if (!plan.environment || plan.environment->rank == 0) {
    check_writable("--output: folder",
                   std::filesystem::absolute(options.output_path).parent_path());
  }
  return run_ranks(plan, [&](RankContext& context) {
    return with_origins(origins, [&] { return generate_on_rank(options, config, context); });
  });
}

}  // namespace grpo::app
