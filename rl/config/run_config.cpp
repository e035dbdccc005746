#include "rl/config/run_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "model/core/config_range.h"
#include "model/core/errors.h"
#include "model/files/model_config.h"

namespace grpo::rl {

namespace {

constexpr double kMaxLearningRate = 1e3;

}  // namespace

void GrpoConfig::visit(ConfigVisitor& visitor) {
  visitor.field("num_prompts_per_step", num_prompts_per_step, "prompts drawn for each step");
  visitor.field("num_generations_per_prompt", num_generations_per_prompt,
                "completions a prompt; they form a group");
  visitor.field("max_num_steps", max_num_steps, "steps of the run");
  visitor.field("normalize_rewards", normalize_rewards, "divide advantages by the group's std");
  visitor.field("use_leave_one_out_baseline", use_leave_one_out_baseline,
                "baseline of a sample is the mean reward of the others in its group");
  visitor.field("seed", seed, "keys initialisation, data order and sampling");
  visit_fields(visitor, validation);
  visitor.field("max_val_samples", max_val_samples,
                "prompts of each validation dataset, at most; 0 takes all");
  visitor.field("val_batch_size", val_batch_size, "validation prompts drawn together");
  visitor.field("val_num_generations_per_prompt", val_num_generations_per_prompt,
                "completions a validation prompt; above 1 there is validation/pass_k");
  visit_section(visitor, "early_stop", "end a run that no longer improves", early_stop);
}

void GrpoConfig::validate(const ConfigVisitor& visitor) const {
  require_range<int64_t>(visitor, "num_prompts_per_step", num_prompts_per_step, 1, kMaxSequences);
  require_range<int64_t>(visitor, "num_generations_per_prompt", num_generations_per_prompt, 1,
                         kMaxSequences / num_prompts_per_step);
  require_range<int64_t>(visitor, "max_num_steps", max_num_steps, 1, kMaxSteps);
  require_range<int64_t>(visitor, "seed", seed, 0, INT64_MAX);
  require_range<int64_t>(visitor, "max_val_samples", max_val_samples, 0, kMaxSequences);
  require_range<int64_t>(visitor, "val_batch_size", val_batch_size, 1, kMaxSequences);
  require_range<int64_t>(visitor, "val_num_generations_per_prompt", val_num_generations_per_prompt,
                         1, kMaxSequences / val_batch_size);
}

void DataConfig::visit(ConfigVisitor& visitor) {
  visit_section(visitor, "train", "prompts to learn from", train);
  visit_list(visitor, "validation", "prompts to measure with", validation);
}

void EnvConfig::visit(ConfigVisitor& visitor) {
  visit_list(visitor, "rewards", "reward functions; a sample's reward is their weighted sum",
             rewards);
}

void WarmStartConfig::visit(ConfigVisitor& visitor) {
  visitor.field("checkpoint", checkpoint,
                "start from the weights of this checkpoint of another run; \"\" for none");
  visitor.field("num_steps", num_steps, "supervised steps before the first rollout; 0 for none");
  visitor.field("global_batch_size", global_batch_size, "examples a supervised step");
  visitor.field("lr", lr, "constant learning rate of the supervised steps");
}

void WarmStartConfig::validate(const ConfigVisitor& visitor) const {
  require_range<int64_t>(visitor, "num_steps", num_steps, 0, kMaxSteps);
  require_range<int64_t>(visitor, "global_batch_size", global_batch_size, 1, kMaxSequences);
  require_range(visitor, "lr", lr, 0.0, kMaxLearningRate);
}

void LoggerConfig::visit(ConfigVisitor& visitor) {
  visitor.field("log_dir", log_dir, "folder of this run's files, reachable by every rank");
  visitor.field("overwrite", overwrite, "replace the files of an earlier run in log_dir");
  visitor.field("console_period", console_period,
                "steps from one console block to the next; files get every step");
  visitor.field("num_samples_to_print", num_samples_to_print,
                "completions shown with a console block");
  visitor.field("samples", samples,
                "completions of a step that samples/step_N.jsonl records: all, none, or the first "
                "so many; replay needs all");
  visitor.field("sample_period", sample_period, "steps from one recorded step to the next");
  visitor.choice("sample_compression", sample_compression, {"none", "gzip"},
                 "of samples/step_N.jsonl; gzip appends .gz to the name");
}

int64_t LoggerConfig::num_recorded_samples() const {
  if (samples == "all") return std::numeric_limits<int64_t>::max();
  if (samples == "none") return 0;
  int64_t count = -1;
  const char* const end = samples.data() + samples.size();
  const auto [rest, error] = std::from_chars(samples.data(), end, count);
  return error == std::errc() && rest == end ? count : -1;
}

void LoggerConfig::validate(const ConfigVisitor& visitor) const {
  if (log_dir.empty()) {
    throw ConfigError(fmt::format("{} is empty; allowed: a folder", visitor.where("log_dir")));
  }
  require_range<int64_t>(visitor, "console_period", console_period, 1, kMaxSteps);
  require_range<int64_t>(visitor, "num_samples_to_print", num_samples_to_print, 0, 1000);
  require_range<int64_t>(visitor, "sample_period", sample_period, 1, kMaxSteps);
  if (num_recorded_samples() < 0) {
    throw ConfigError(fmt::format("{} is '{}'; allowed: all, none, or a number of samples",
                                  visitor.where("samples"), samples));
  }
}

void RunConfig::visit(ConfigVisitor& visitor) {
  visitor.choice("algorithm", algorithm, {"grpo", "sft"},
                 "grpo: rewards of drawn completions; sft: likelihood of given responses");
  visit_section(visitor, "grpo", "the loop of grpo", grpo);
  visit_section(visitor, "sft", "the loop of sft", sft);
  visit_section(visitor, "loss_fn", "the clipped policy-gradient loss", loss_fn);
  visit_section(visitor, "policy", "model, optimizer and generation", policy);
  visit_section(visitor, "data", "prompts", data);
  visit_section(visitor, "env", "rewards", env);
  visit_section(visitor, "warm_start", "what comes before the first step", warm_start);
  visit_section(visitor, "checkpointing", "saving and resuming", checkpointing);
  visit_section(visitor, "logger", "files and console", logger);
  visit_section(visitor, "parallel", "the mesh", parallel);
  visit_section(visitor, "numerics", "exactness", numerics);
  visit_list(visitor, "gates", "bounds on metrics", gates);
}

}  // namespace grpo::rl
