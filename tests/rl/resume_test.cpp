// Checkpoints of runs: k + m steps equal k, save, resume, m.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <functional>

#include "rl/state/checkpoint_ranking.h"
#include "rl/state/checkpointing.h"
#include "rl/state/resume_point.h"
#include "tests/rl/saved_run.h"
#include "tests/run_ranks.h"

namespace grpo {
namespace {

using testing::RecordedRun;
using testing::run_training;
using testing::TemporaryFolder;
using testing::trained_run_config;

rl::RunConfig checkpointed_config(const std::filesystem::path& folder, int64_t num_steps) {
  rl::RunConfig config = trained_run_config();
  config.grpo.max_num_steps = num_steps;
  config.parallel.gtp_remat = 2;
  config.policy.train_global_batch_size = 16;
  config.policy.scheduler.warmup_steps = 4;
  config.checkpointing.enabled = true;
  config.checkpointing.checkpoint_dir = folder.string();
  config.checkpointing.save_period = 3;
  rl::GateConfig gate;
  gate.metric = "train/reward";
  gate.reduction = "mean";
  gate.min = -1;
  config.gates.push_back(gate);
  return config;
}

template <typename E>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST(Resume, SameLayoutGoesOnByteForByte) {
  const TemporaryFolder scratch;
  const RecordedRun whole = run_training(checkpointed_config(scratch / "whole", 6));
  const RecordedRun first = run_training(checkpointed_config(scratch / "parts", 3));
  const RecordedRun second =
      run_training(checkpointed_config(scratch / "parts", 6), scratch / "parts/step_3");
  ASSERT_EQ(whole.steps.size(), 6u);
  ASSERT_EQ(first.steps.size(), 3u);
  testing::expect_same_runs(whole, first, second);
  for (size_t step = 0; step < 6; ++step) {
    EXPECT_EQ(step < 3 ? first.samples[step] : second.samples[step], whole.samples[step]);
  }
  // Two layers, embedding, final norm, model config, tokenizer, manifest.
  EXPECT_EQ(testing::files_of(scratch / "whole/step_6").size(), 7u);
  testing::expect_same_files(scratch / "parts/step_6", scratch / "whole/step_6");
}

// From a checkpoint of gtp 2 at gtp 1, 3 and 4: the steps that come, and the files they end in, are
// those of the run that stayed.
TEST(Resume, AnotherGtpGoesOnByteForByte) {
  const TemporaryFolder scratch;
  const auto config_of = [&](const char* folder, int gtp_remat, int64_t num_steps) {
    rl::RunConfig config = checkpointed_config(scratch / folder, num_steps);
    config.parallel.gtp_remat = gtp_remat;
    config.policy.sequence_packing.train_mb_multiple = 4;
    return config;
  };
  const RecordedRun whole = run_training(config_of("whole", 2, 6));
  run_training(config_of("parts", 2, 3));
  for (const int gtp_remat : {1, 3, 4}) {
    SCOPED_TRACE(fmt::format("gtp_remat {}", gtp_remat));
    const RecordedRun rest =
        run_training(config_of("parts", gtp_remat, 6), scratch / "parts/step_3");
    ASSERT_EQ(rest.steps.size(), 3u);
    for (size_t step = 0; step < 3; ++step) {
      testing::expect_same_metrics_at_any_gtp(rest.steps[step], whole.steps[3 + step]);
      EXPECT_EQ(rest.samples[3 + step], whole.samples[3 + step]);
    }
    testing::expect_same_files(scratch / "parts/step_6", scratch / "whole/step_6");
    std::filesystem::remove_all(scratch / "parts/step_6");
  }
}

// A warm start is interrupted twice, the run again before its first step: what comes is the same.
TEST(Resume, AWarmStartGoesOnByteForByte) {
  const TemporaryFolder scratch;
  const auto config_of = [&](const char* folder) {
    rl::RunConfig config = checkpointed_config(scratch / folder, 3);
    config.warm_start = {.num_steps = 10, .global_batch_size = 16, .lr = 1e-3};
    config.checkpointing.metric_name = "train/reward";
    return config;
  };
  const RecordedRun whole = run_training(config_of("whole"));
  ASSERT_EQ(whole.exit_code, ExitCode::kDone);
  std::optional<std::filesystem::path> resume_from;
  const std::filesystem::path step_0 = scratch / "parts/step_0";
  for (const auto& [stop_at, num_done] :
       {std::pair("warm start 4/10", 4), std::pair("warm start 8/10", 8)}) {
    const RecordedRun part = run_training(config_of("parts"), resume_from, std::nullopt, stop_at);
    EXPECT_EQ(part.exit_code, ExitCode::kSavedAfterSignal);
    EXPECT_TRUE(part.setup.empty());
    EXPECT_TRUE(part.steps.empty());
    EXPECT_EQ(part.messages.back(),
              fmt::format("the warm start is saved after {} of 10 steps", num_done));
    EXPECT_EQ(rl::read_run_state(step_0).num_warm_start_steps, num_done);
    EXPECT_EQ(rl::read_run_state(step_0).optimizer_steps, num_done);
    for (const std::string& line : part.warnings) {
      EXPECT_EQ(line.find("ranks last"), std::string::npos) << line;
    }
    EXPECT_FALSE(std::filesystem::exists(step_0.string() + ".replaced"));
    resume_from = step_0;
  }
  for (const int64_t num_steps : {0, 7}) {
    rl::RunConfig fewer = config_of("parts");
    fewer.warm_start.num_steps = num_steps;
    const std::string error = error_of<ConfigError>([&] { run_training(fewer, step_0); });
    EXPECT_NE(error.find(fmt::format("is {}, the checkpoint {} was saved after 8 steps", num_steps,
                                     step_0.string())),
              std::string::npos)
        << error;
  }
  // A save that fails keeps what it was to replace.
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(run_training(config_of("parts"), step_0, std::nullopt, "warm start 10/10"),
               DataError);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, handler);
  std::filesystem::remove_all(step_0);
  std::filesystem::rename(step_0.string() + ".replaced", step_0);
  EXPECT_EQ(rl::read_run_state(step_0).num_warm_start_steps, 8);
  const RecordedRun last =
      run_training(config_of("parts"), step_0, std::nullopt, "warm start 10/10");
  EXPECT_EQ(last.exit_code, ExitCode::kSavedAfterSignal);
  EXPECT_EQ(rl::read_run_state(step_0).num_warm_start_steps, std::nullopt);
  EXPECT_EQ(rl::read_run_state(step_0).optimizer_steps, 0);
  const RecordedRun rest = run_training(config_of("parts"), step_0);
  EXPECT_EQ(rest.exit_code, ExitCode::kDone);
  testing::expect_same_runs(whole, {}, rest);
  EXPECT_EQ(rest.samples, whole.samples);
  testing::expect_same_files(scratch / "parts/step_3", scratch / "whole/step_3");
}

// The checkpoint of (gtp 2) read at other layouts: the next step's rollout and log-probabilities
// have the same bits.
TEST(Resume, OtherLayoutsStartFromTheSameBits) {
  const TemporaryFolder scratch;
  run_training(checkpointed_config(scratch / "run", 3));
  rl::RunConfig config = checkpointed_config(scratch / "run", 4);
  config.policy.train_global_batch_size = 32;
  config.policy.sequence_packing.train_mb_multiple = 4;
  config.checkpointing.enabled = false;
  const RecordedRun reference = run_training(config, scratch / "run/step_3");
  for (const auto& [gtp, data] :
       {std::pair(1, 1), std::pair(3, 1), std::pair(2, 2), std::pair(4, 1)}) {
    config.parallel.gtp_remat = gtp;
    config.parallel.data = data;
    const RecordedRun run = run_training(config, scratch / "run/step_3");
    EXPECT_EQ(run.samples.back(), reference.samples.back());
    for (const char* name :
         {"train/loss", "train/kl_penalty", "train/approx_entropy", "train/lr"}) {
      EXPECT_EQ(run.steps[0].at(name), reference.steps[0].at(name)) << name << " at gtp " << gtp;
    }
    EXPECT_EQ(run.steps[0].at("train/mismatch_count"), 0.0);
    const double norm = reference.steps[0].at("train/grad_norm");
    EXPECT_NEAR(run.steps[0].at("train/grad_norm"), norm, data == 1 ? 0.0 : 1e-5 * norm);
  }
}

TEST(Resume, AutoTakesTheNewestFinishedCheckpoint) {
  const TemporaryFolder scratch;
  EXPECT_EQ(rl::find_checkpoint("auto", scratch / "none"), std::nullopt);
  for (const char* step : {"step_9", "step_10", "step_11"}) {
    std::filesystem::create_directories(scratch / step);
  }
  for (const char* step : {"step_9", "step_10"})
    std::ofstream(scratch / step / "manifest.json") << "{}";
  EXPECT_EQ(rl::find_checkpoint("auto", scratch / ""), scratch / "step_10");
  EXPECT_EQ(rl::find_checkpoint((scratch / "step_9").string(), scratch / ""), scratch / "step_9");
  EXPECT_THROW(rl::find_checkpoint((scratch / "step_11").string(), scratch / ""), ConfigError);
  rl::CheckpointingConfig keep_one;
  keep_one.keep_last = 1;
  rl::remove_superfluous_checkpoints(scratch / "", rl::CheckpointRanking(keep_one), 10);
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_9"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "step_10"));
}

TEST(Resume, AnotherModelOrSeedIsRefused) {
  const TemporaryFolder scratch;
  run_training(checkpointed_config(scratch / "run", 1));
  const auto resume_with = [&](const std::function<void(rl::RunConfig&)>& change) {
    rl::RunConfig config = checkpointed_config(scratch / "run", 2);
    change(config);
    run_training(config, scratch / "run/step_1");
  };
  EXPECT_NE(error_of<ConfigError>([&] {
              resume_with([](auto& c) { c.grpo.seed += 1; });
            }).find("grpo.seed is 43"),
            std::string::npos);
  const auto custom = [](rl::RunConfig& config) {
    config.policy.model_name = "custom";
    config.policy.model.intermediate_size = 192;
    config.policy.model.max_position_embeddings = 64;
  };
  EXPECT_EQ(error_of<DataError>([&] { resume_with(custom); }), "no error");  // the same sizes
  const std::map<std::string, std::function<void(rl::ModelSizesConfig&)>> changes = {
      {"num_hidden_layers is 2 there, 1 in this run", [](auto& m) { m.num_hidden_layers = 1; }},
      {"num_attention_heads is 4 there, 2 in this run", [](auto& m) { m.num_attention_heads = 2; }},
      {"intermediate_size is 192 there, 64 in this run", [](auto& m) { m.intermediate_size = 64; }},
      {"rope_theta is 10000 there, 1000 in this run", [](auto& m) { m.rope_theta = 1e3; }},
      {"rms_norm_eps is 1e-06 there, 1e-05 in this run", [](auto& m) { m.rms_norm_eps = 1e-5; }},
      {"tie_word_embeddings is true there, false in this run",
       [](auto& m) { m.tie_word_embeddings = false; }}};
  for (const auto& [message, change] : changes) {
    const std::string error = error_of<DataError>([&, &by = change] {
      resume_with([&](rl::RunConfig& config) {
        custom(config);
        by(config.policy.model);
      });
    });
    EXPECT_NE(error.find(message), std::string::npos) << error;
  }
  EXPECT_NE(error_of<DataError>([&] {
              resume_with([](auto& c) { c.policy.precision = "bfloat16"; });
            }).find("torch_dtype is float32 there, bfloat16 in this run"),
            std::string::npos);
  // A run without KL has no place for the reference.
  EXPECT_NE(error_of<DataError>([&] {
              resume_with([](auto& c) { c.loss_fn.reference_policy_kl_penalty = 0; });
            }).find("tensor 'reference/"),
            std::string::npos);
  EXPECT_NE(error_of<DataError>([&] {
              resume_with([](auto& c) { c.policy.optimizer.name = "sgd"; });
            }).find("tensor 'm/"),
            std::string::npos);
}

TEST(Resume, AnotherTokenizerIsRefused) {
  const TemporaryFolder scratch;
  run_training(checkpointed_config(scratch / "run", 1));
  std::ofstream(scratch / "run/step_1/tokenizer.model", std::ios::app) << "x";
  const std::string error = error_of<DataError>(
      [&] { run_training(checkpointed_config(scratch / "run", 2), scratch / "run/step_1"); });
  EXPECT_NE(error.find("another tokenizer: tokenizer.model has checksum "), std::string::npos)
      << error;
}

rl::ResumePoint resume_point(const std::string& resume, const std::filesystem::path& parent) {
  rl::ResumePoint point;
  testing::run_ranks(2, [&](parallel::World& world) {
    const auto everyone = world.make_group({0, 1}, "start");
    const rl::ResumePoint own = rl::find_resume_point(resume, parent, *everyone);
    if (world.rank() == 1) point = own;
  });
  return point;
}

// K: auto passes over damage, loudly; a checkpoint that was named is not replaced by another one.
TEST(Resume, DamagedCheckpointsArePassedOver) {
  const TemporaryFolder scratch;
  const std::filesystem::path run = scratch / "run";
  rl::RunConfig config = checkpointed_config(run, 3);
  config.checkpointing.save_period = 1;
  run_training(config);
  EXPECT_EQ(resume_point("auto", run).checkpoint, run / "step_3");
  EXPECT_EQ(resume_point(run.string(), run).step, 3);
  std::filesystem::resize_file(run / "step_3/embedding.safetensors", 100);
  const rl::ResumePoint point = resume_point("auto", run);
  EXPECT_EQ(point.checkpoint, run / "step_2");
  EXPECT_EQ(point.step, 2);
  ASSERT_EQ(point.warnings.size(), 1u);
  EXPECT_NE(point.warnings[0].find("embedding.safetensors: 100 bytes, the manifest says "),
            std::string::npos)
      << point.warnings[0];
  EXPECT_NE(error_of<DataError>([&] {
              resume_point((run / "step_3").string(), run);
            }).find("is damaged: "),
            std::string::npos);
  // A whole checkpoint under another step's name is none either.
  std::filesystem::remove_all(run / "step_3");
  std::filesystem::rename(run / "step_2", run / "step_5");
  EXPECT_EQ(resume_point("auto", run).checkpoint, run / "step_1");
  EXPECT_NE(error_of<DataError>([&] {
              resume_point((run / "step_5").string(), run);
            }).find("\"step\" is 2, the folder's is 5"),
            std::string::npos);
  std::filesystem::remove(run / "step_1/config.json");
  EXPECT_NE(error_of<DataError>([&] { resume_point("auto", run); }).find("every checkpoint in "),
            std::string::npos);
  EXPECT_EQ(resume_point("auto", scratch / "none").checkpoint, std::nullopt);
}

// What a resumed run will make anew steps aside, so that a later --resume auto cannot take it.
TEST(Resume, LaterCheckpointsAreSetAside) {
  const TemporaryFolder scratch;
  for (const char* step : {"step_2", "step_4", "step_6"}) {
    std::filesystem::create_directories(scratch / step);
    std::ofstream(scratch / step / "manifest.json") << "{}";
  }
  std::filesystem::create_directories(scratch / "step_4.replaced");
  EXPECT_EQ(rl::set_aside_checkpoints(scratch / "", 2).size(), 2u);
  EXPECT_TRUE(std::filesystem::exists(scratch / "step_2/manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "step_4.replaced-2/manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "step_6.replaced/manifest.json"));
  EXPECT_TRUE(rl::set_aside_checkpoints(scratch / "", 2).empty());
  // They go when the run has made that step anew, or a later one.
  for (const char* other : {"step_4.replaced-mine", "step_4.replaced-", "mine.replaced"}) {
    std::filesystem::create_directories(scratch / other);
  }
  rl::remove_replaced_checkpoints(scratch / "", 5);
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_4.replaced"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "step_4.replaced-2"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "step_6.replaced/manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "step_2/manifest.json"));
  for (const char* other : {"step_4.replaced-mine", "step_4.replaced-", "mine.replaced"}) {
    EXPECT_TRUE(std::filesystem::exists(scratch / other)) << other;
  }
}

}  // namespace
}  // namespace grpo
