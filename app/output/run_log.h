// RunLog: the RunObserver of world rank 0: the run's files and the console.
#pragma once

#include "app/output/console.h"
#include "app/output/run_files.h"
#include "rl/config/run_config.h"

namespace grpo::app {

// Used by the trainer's thread. Files are written before the console shows the same numbers.
class RunLog : public rl::RunObserver {
 public:
  // `files` and `console` outlive this. The console shows the first, the last and every
  // console_period-th step, with its first num_samples_to_print completions.
  RunLog(RunFiles& files, Console& console, int64_t num_steps, const rl::LoggerConfig& config);

  void on_start(int64_t num_steps) override { num_steps_ = num_steps; }
  void on_message(const std::string& line) override;
  void on_warning(const std::string& line) override;
  void on_memory_plan(const rl::MemoryPlan& plan) override;
  void on_measured_memory(const rl::MemoryPlan& plan, const rl::MeasuredMemory& measured) override;
  void on_step(int64_t step, const rl::MetricSet& metrics) override;
  void on_progress(const std::string& phase, int64_t done, int64_t total) override;
  void on_samples(int64_t step, const rl::SampleBatch& samples) override;

 private:
  bool is_shown(int64_t step) const;

  RunFiles& files_;
  Console& console_;
  int64_t num_steps_;
  rl::LoggerConfig config_;
};

// Of the other ranks, which say nothing.
class SilentObserver : public rl::RunObserver {
 public:
  void on_message(const std::string&) override {}
  void on_warning(const std::string&) override {}
  void on_step(int64_t, const rl::MetricSet&) override {}
  void on_progress(const std::string&, int64_t, int64_t) override {}
  void on_samples(int64_t, const rl::SampleBatch&) override {}
};

}  // namespace grpo::app
