#include "tests/rl/trained_model.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "parallel/checkpoint/weights_io.h"
#include "rl/config/resolve_config.h"
#include "rl/loop/warm_start.h"
#include "rl/models/policy_models.h"
#include "rl/run/trainer.h"
#include "tests/model_fixture.h"
#include "tests/run_ranks.h"
#include "tests/temporary_folder.h"

namespace grpo::testing {

namespace {

// Sums of one, two and three digits.
void write_sums(const std::filesystem::path& path) {
  std::ofstream file(path);
  for (const int a : {1, 2, 3, 4, 5, 6, 95, 96, 97, 98, 99}) {
    for (const int b : {1, 2, 3, 4, 5, 6, 95, 96, 97, 98, 99}) {
      file << fmt::format("{{\"question\": \"{}+{}=\", \"answer\": \"{}\"}}\n", a, b, a + b);
    }
  }
}

rl::RunConfig base_config(const std::filesystem::path& directory) {
  rl::RunConfig config;
  config.policy.model_name = "custom";
  config.policy.model.intermediate_size = 192;
  config.policy.model.max_position_embeddings = 64;
  config.policy.tokenizer.name = GRPO_SOURCE_DIR "/configs/demo/tokenizer.model";
  config.policy.max_total_sequence_length = 16;
  config.policy.optimizer.kwargs.lr = 1e-3;
  config.policy.generation.max_new_tokens = 3;
  config.data.train.path = (directory / "sums.jsonl").string();
  config.data.train.prompt_template = "{question}";
  config.data.train.response_template = "{answer}";
  config.env.rewards.emplace_back();
  return config;
}

class RecordingObserver : public rl::RunObserver {
 public:
  // `stop` becomes true with a message that starts with `stop_at`.
  RecordingObserver(RecordedRun& run, const std::string& stop_at, std::atomic<bool>& stop)
      : run_(run), stop_at_(stop_at), stop_(stop) {}

  void on_message(const std::string& line) override {
    run_.messages.push_back(line);
    if (!stop_at_.empty() && line.starts_with(stop_at_)) stop_ = true;
  }
  void on_warning(const std::string& line) override { run_.warnings.push_back(line); }
  void on_progress(const std::string&, int64_t, int64_t) override {}
  void on_step(int64_t step, const rl::MetricSet& metrics) override {
    if (step == 0) {
      run_.setup = {metrics.values().begin(), metrics.values().end()};
      return;
    }
    run_.steps.emplace_back(metrics.values().begin(), metrics.values().end());
  }
  void on_memory_plan(const rl::MemoryPlan& plan) override { run_.plan = plan; }
  void on_measured_memory(const rl::MemoryPlan&, const rl::MeasuredMemory& measured) override {
    run_.memory = measured;
  }
  void on_samples(int64_t step, const rl::SampleBatch& samples) override {
    run_.samples.resize(static_cast<size_t>(step));
    run_.samples.back() = samples.lines;
  }

 private:
  RecordedRun& run_;
  std::string stop_at_;
  std::atomic<bool>& stop_;
};

void write_trained_model(const std::filesystem::path& directory) {
  write_sums(directory / "sums.jsonl");
  rl::RunConfig config = base_config(directory);
  config.warm_start = {.checkpoint = "", .num_steps = 120, .global_batch_size = 64, .lr = 3e-3};
  rl::resolve(config, 1);
  run_ranks(1, [&](parallel::World& world) {
    RankContext rank;
    const auto tokenizer = model::load_tokenizer(config.policy.tokenizer.name);
    const rl::PromptDataset dataset(config.data.train, *tokenizer);
    const rl::ModelSource source = rl::open_model(config.policy, *tokenizer);
    rl::PolicyModels models(config, source, world, rank.allocator);
    const std::atomic<bool> no_stop{false};
    rl::Optimizer optimizer(config.policy.optimizer, models.policy_store(), rank.allocator);
    rl::warm_start(config,
                   {.dataset = dataset,
                    .end_token = source.config.eos_token_ids.front(),
                    .policy = models.policy(),
                    .store = models.policy_store(),
                    .optimizer = optimizer},
                   0, nullptr, no_stop, rank.ctx);
    model::write_model_config(source.config, directory);
    parallel::save_weights(models.policy_store(), directory, DType::kFloat32);
  });
}

}  // namespace

const std::filesystem::path& trained_model_directory() {
  static const TemporaryFolder scratch;
  static std::once_flag once;
  std::call_once(once, [] { write_trained_model(scratch.path()); });
  return scratch.path();
}

rl::RunConfig trained_run_config() {
  rl::RunConfig config = base_config(trained_model_directory());
  config.policy.model_name = trained_model_directory().string();
  return config;
}

RecordedRun run_training(rl::RunConfig config,
                         const std::optional<std::filesystem::path>& resume_from,
                         const std::optional<Device>& device, const std::string& stop_at) {
  RecordedRun run;
  const int world_size = static_cast<int>(config.parallel.tensor * config.parallel.gtp_remat *
                                          std::max<int64_t>(config.parallel.data, 1));
  rl::resolve(config, world_size);
  run_ranks(world_size, [&](parallel::World& world) {
    RecordedRun unheard;
    std::atomic<bool> stop{false};
    RecordingObserver observer(world.rank() == 0 ? run : unheard, stop_at, stop);
    rl::Trainer trainer(config, world, device.value_or(test_device()), observer, stop, resume_from);
    const rl::RunOutcome outcome = trainer.run();
    if (world.rank() == 0) {
      run.exit_code = outcome.exit_code;
      run.early_stop = outcome.early_stop;
      run.best_checkpoint = outcome.best_checkpoint;
    }
    CHECK(world.rank() == 0 || unheard.steps.empty(), "rank {} reported", world.rank());
  });
  return run;
}

}  // namespace grpo::testing
