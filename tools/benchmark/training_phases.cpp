#include "rl/loop/sequence_scorer.h"
#include "tools/benchmark/phase_clock.h"
#include "tools/benchmark/phases.h"

namespace grpo::benchmark {

namespace {

constexpr float kInvTemperature = 1.0f;

int64_t num_step_sequences(const Options& options) {
  return options.micro_batches * (options.micro_batch_tokens / options.sequence_length);
}

double num_step_tokens(const Options& options) {
  return static_cast<double>(options.micro_batches * options.micro_batch_tokens);
}

// A policy update of made-up sequences, by the program's own update_policy.
class TrainingStep {
 public:
  explicit TrainingStep(Rig& rig)
      : rig_(rig),
        sequences_(rig.make_rollout(num_step_sequences(rig.options()))),
        signals_(rig.make_signals(sequences_)) {}

  void run(model::Transformer& policy) {
    const rl::RunConfig& config = rig_.config();
    rl::update_policy(
        config.loss_fn, policy, rig_.models().policy_store(), rig_.optimizer(), sequences_,
        signals_,
        {.inv_temperature = kInvTemperature,
         .micro_batches = {.max_tokens = rig_.options().micro_batch_tokens, .multiple = 1},
         .learning_rate = config.policy.optimizer.kwargs.lr,
         .max_grad_norm = config.policy.max_grad_norm,
         .filter_check = nullptr},
        rig_.ctx());
  }

 private:
  Rig& rig_;
  std::vector<rl::RolloutSequence> sequences_;
  std::vector<rl::SequenceSignals> signals_;
};

// Seconds of a step by phase. What comes after the passes, and is not named here, is "other".
struct StepParts {
  double forward, head, backward, reduce, optimizer, other;
};

StepParts measure_parts(Rig& rig, TrainingStep& step) {
  const model::TransformerParameters& parameters = rig.parameters();
  PhaseClock clock(rig.device());
  // The final norm is read at the start of the loss head and again where its backward begins.
  TimedStore store(rig.models().policy_store(), clock, "forward",
                   {{.parameter = parameters.final_norm, .use = 1, .phase = "head"},
                    {.parameter = parameters.final_norm, .use = 2, .phase = "backward"}},
                   "outside");
  model::Transformer policy(rig.options().model, parameters, store, rig.transformer_options(),
                            rig.allocator());
  const auto values = rig.medians("training step, by parts", [&]() -> std::vector<double> {
    clock.restart("outside");
    step.run(policy);
    clock.enter("outside");
    // Once more and by themselves: they follow the passes without a border.
    const double reduce = rig.seconds([&] { rig.models().policy_store().reduce_gradients(); });
    const double optimizer = rig.seconds([&] {
      const double norm = rig.optimizer().gradient_norm(rig.ctx());
      rig.optimizer().step(rig.config().policy.optimizer.kwargs.lr, norm,
                           rig.config().policy.max_grad_norm, rig.ctx());
    });
    return {clock.seconds("forward"),
            clock.seconds("head"),
            clock.seconds("backward"),
            reduce,
            optimizer,
            clock.seconds("outside") - reduce - optimizer};
  });
  return {values[0], values[1], values[2], values[3], values[4], values[5]};
}

}  // namespace

PassShape pass_shape(const Options& options) {
  const int64_t sequences = options.micro_batch_tokens / options.sequence_length;
  return {.num_tokens = options.micro_batch_tokens,
          .sequence_length = options.sequence_length,
          .num_predicted = sequences * (options.sequence_length - options.context_tokens),
          .head_chunk_rows = options.head_chunk_rows};
}

std::vector<PhaseRow> measure_training(Rig& rig) {
  const Options& options = rig.options();
  TrainingStep step(rig);
  const std::string section = fmt::format("training step, {} x {} tokens", options.micro_batches,
                                          options.micro_batch_tokens);
  const double whole = rig.medians(section, [&]() -> std::vector<double> {
    return {rig.seconds([&] { step.run(rig.models().policy()); })};
  })[0];
  const StepParts parts = measure_parts(rig, step);

  const ModelWork work(options.model, rig.activation_bytes());
  const std::vector<OperatorWork> pass = work.training_pass(pass_shape(options));
  const auto micro_batches = static_cast<double>(options.micro_batches);
  const auto pass_floor = [&](Phase phase) {
    return micro_batches * floor_seconds(only(pass, phase), options.ceilings);
  };
  const double optimizer_floor = floor_seconds(work.optimizer_step(), options.ceilings);
  const double whole_floor =
      micro_batches * floor_seconds(pass, options.ceilings) + optimizer_floor;
  const double tokens = num_step_tokens(options);
  const auto part = [&](const char* name, double seconds, std::optional<double> floor) {
    return PhaseRow{section, name, seconds, std::nullopt, floor, std::nullopt};
  };
  return {{section, "all", whole, tokens, whole_floor, rig.peak_bytes(section)},
          part("forward", parts.forward, pass_floor(Phase::kForward)),
          part("loss head", parts.head, pass_floor(Phase::kHead)),
          part("backward", parts.backward, pass_floor(Phase::kBackward)),
          part("reduce", parts.reduce, std::nullopt),
          part("optimizer", parts.optimizer, optimizer_floor),
          part("packing, loss sums and other", parts.other, std::nullopt)};
}

std::vector<PhaseRow> measure_scoring(Rig& rig) {
  const Options& options = rig.options();
  auto sequences = rig.make_rollout(num_step_sequences(options));
  const std::string section =
      fmt::format("scoring, {} x {} tokens", options.micro_batches, options.micro_batch_tokens);
  const double whole = rig.medians(section, [&]() -> std::vector<double> {
    return {rig.seconds([&] {
      rl::score_sequences(rig.models().policy(), rig.models().groups(), sequences,
                          {.inv_temperature = kInvTemperature,
                           .max_tokens = options.micro_batch_tokens,
                           .applies_filter = true,
                           .filter_check = nullptr},
                          rig.ctx());
    })};
  })[0];
  const ModelWork work(options.model, rig.activation_bytes());
  const double floor = static_cast<double>(options.micro_batches) *
                       floor_seconds(work.scoring_pass(pass_shape(options)), options.ceilings);
  return {{section, "all", whole, num_step_tokens(options), floor, rig.peak_bytes(section)}};
}

}  // namespace grpo::benchmark
