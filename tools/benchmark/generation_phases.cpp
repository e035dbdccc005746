#include "tools/benchmark/phase_clock.h"
#include "tools/benchmark/phases.h"

namespace grpo::benchmark {

namespace {

// What is asked of an engine, and the work of its parts.
struct Rollouts {
  std::vector<generation::GenerationRequest> requests;
  generation::SamplingParams params;
  int64_t num_prompts;
};

Rollouts make_rollouts(const Rig& rig, int64_t num_prompts) {
  const Options& options = rig.options();
  Rollouts rollouts{.requests = {},
                    .params = {.filter = {},
                               .greedy = false,
                               .max_new_tokens = options.new_tokens,
                               .stop_token_ids = {},
                               .ignore_stop = true,
                               .seed = 42,
                               .split = generation::DrawSplit::kTrain,
                               .stores_kept_tokens = true},
                    .num_prompts = num_prompts};
  for (int64_t p = 0; p < num_prompts; ++p) {
    generation::GenerationRequest& request = rollouts.requests.emplace_back();
    request.tag = p;
    request.draw_index = static_cast<uint64_t>(p);
    request.prompt_tokens = rig.random_tokens(static_cast<uint64_t>(p), options.prompt_tokens);
    for (int64_t s = 0; s < options.num_sequences / num_prompts; ++s) {
      request.sample_indices.push_back(static_cast<int32_t>(s));
    }
  }
  return rollouts;
}

void generate(Rig& rig, generation::Engine& engine, const Rollouts& rollouts, int64_t new_tokens) {
  generation::SamplingParams params = rollouts.params;
  params.max_new_tokens = new_tokens;
  const auto completions =
      engine.generate(rollouts.requests, params, rig.ctx(), [](int64_t, int64_t) {});
  int64_t drawn = 0;
  for (const generation::Completion& c : completions) drawn += std::ssize(c.tokens);
  CHECK(drawn == rig.options().num_sequences * new_tokens, "{} tokens were generated", drawn);
}

// Seconds of the program's own engine.
struct EngineTimes {
  double first_tokens;  // prefill, and the first token of every sequence
  double all;
};

EngineTimes measure_engine(Rig& rig, const Rollouts& rollouts, const std::string& section) {
  generation::Engine& engine = rig.models().engine();
  const int64_t new_tokens = rig.options().new_tokens;
  const auto values = rig.medians(section, [&]() -> std::vector<double> {
    const double first = rig.seconds([&] { generate(rig, engine, rollouts, 1); });
    const double all = rig.seconds([&] { generate(rig, engine, rollouts, new_tokens); });
    return {first, all};
  });
  return {values[0], values[1]};
}

// Seconds inside and outside of the model's passes, for an engine over a timed model.
struct PassTimes {
  double first_inside, first_outside;  // of the first tokens
  double all_inside, all_outside;
};

PassTimes measure_passes(Rig& rig, const Rollouts& rollouts) {
  const Options& options = rig.options();
  PhaseClock clock(rig.device());
  TimedStore store(rig.models().generation_store(), clock, "inside", {}, "outside");
  model::Transformer transformer(options.model, rig.parameters(), store, rig.transformer_options(),
                                 rig.allocator());
  const rl::PolicyConfig& policy = rig.config().policy;
  generation::Engine engine(transformer,
                            {.max_sequence_tokens = policy.max_total_sequence_length,
                             .max_batch_size = policy.generation.max_batch_size,
                             .page_size_tokens = policy.generation.page_size_tokens,
                             .prefill_chunk_tokens = policy.generation.prefill_chunk_tokens},
                            rig.allocator());
  const auto values = rig.medians("generation, by parts", [&] {
    std::vector<double> seconds;
    for (const int64_t new_tokens : {int64_t{1}, options.new_tokens}) {
      clock.restart("outside");
      generate(rig, engine, rollouts, new_tokens);
      clock.enter("outside");
      seconds.push_back(clock.seconds("inside"));
      seconds.push_back(clock.seconds("outside"));
    }
    return seconds;
  });
  return {values[0], values[1], values[2], values[3]};
}

// Floors of the parts.
struct Floors {
  double prefill;
  double decode_pass;  // a step in the middle of the response
  double sampling;     // of one token of every sequence
};

Floors find_floors(const Rig& rig, const Rollouts& rollouts) {
  const Options& options = rig.options();
  const ModelWork work(options.model, rig.activation_bytes());
  const auto prompts = static_cast<double>(rollouts.num_prompts);
  const auto length = static_cast<double>(options.prompt_tokens);
  const auto sequences = static_cast<double>(options.num_sequences);
  // The n-th decode step puts the n-th drawn token in; n runs from 1 to new_tokens - 1.
  const double drawn = static_cast<double>(options.new_tokens) / 2;
  const auto floor = [&](const std::vector<OperatorWork>& list) {
    return floor_seconds(list, options.ceilings);
  };
  return {
      .prefill = floor(work.cached_pass({.num_rows = prompts * length,
                                         .num_pairs = prompts * length * (length + 1) / 2,
                                         .context_tokens = prompts * length,
                                         .num_logit_rows = prompts})),
      .decode_pass = floor(work.cached_pass({.num_rows = sequences,
                                             .num_pairs = sequences * (length + drawn),
                                             .context_tokens = prompts * length + sequences * drawn,
                                             .num_logit_rows = sequences})),
      .sampling = floor(work.sampling(sequences))};
}

std::vector<PhaseRow> measure_rollouts(Rig& rig, int64_t num_prompts) {
  const Options& options = rig.options();
  const Rollouts rollouts = make_rollouts(rig, num_prompts);
  const std::string section =
      fmt::format("generation, {} prompts x {}", num_prompts, options.num_sequences / num_prompts);
  const EngineTimes times = measure_engine(rig, rollouts, section);
  const PassTimes passes = measure_passes(rig, rollouts);
  const Floors floors = find_floors(rig, rollouts);
  const auto sequences = static_cast<double>(options.num_sequences);
  const auto steps = static_cast<double>(options.new_tokens - 1);
  const auto part = [&](const char* name, double seconds, std::optional<double> tokens,
                        double floor) {
    return PhaseRow{section, name, seconds, tokens, floor, std::nullopt};
  };
  std::vector<PhaseRow> rows{
      {section, "all", times.all, sequences * static_cast<double>(options.new_tokens),
       floors.prefill + floors.sampling + steps * (floors.decode_pass + floors.sampling),
       rig.peak_bytes(section)},
      part("prefill and first tokens", times.first_tokens,
           static_cast<double>(num_prompts * options.prompt_tokens),
           floors.prefill + floors.sampling),
      part("prefill: model", passes.first_inside, std::nullopt, floors.prefill),
      part("first tokens: sampling and host", passes.first_outside, std::nullopt, floors.sampling)};
  if (steps < 1) return rows;
  rows.push_back(part("decode, a step", (times.all - times.first_tokens) / steps, sequences,
                      floors.decode_pass + floors.sampling));
  rows.push_back(part("decode, a step: model", (passes.all_inside - passes.first_inside) / steps,
                      std::nullopt, floors.decode_pass));
  rows.push_back(part("decode, a step: sampling and host",
                      (passes.all_outside - passes.first_outside) / steps, std::nullopt,
                      floors.sampling));
  return rows;
}

}  // namespace

std::vector<PhaseRow> measure_generation(Rig& rig) {
  rig.models().refit();
  std::vector<PhaseRow> rows;
  for (const int64_t num_prompts : rig.options().num_prompts) {
    const std::vector<PhaseRow> own = measure_rollouts(rig, num_prompts);
    rows.insert(rows.end(), own.begin(), own.end());
  }
  return rows;
}

std::vector<PhaseRow> measure_refit(Rig& rig) {
  const double seconds = rig.medians("refit", [&]() -> std::vector<double> {
    return {rig.seconds([&] { rig.models().refit(); })};
  })[0];
  const ModelWork work(rig.options().model, rig.activation_bytes());
  return {{"refit", "all", seconds, std::nullopt,
           rig.options().ceilings.floor_seconds(work.refit()), rig.peak_bytes("refit")}};
}

}  // namespace grpo::benchmark
