#include "app/output/run_log.h"

#include "app/launch/host_memory.h"
#include "app/launch/usable_cores.h"
#include "rl/run/memory_report.h"

namespace grpo::app {

RunLog::RunLog(RunFiles& files, Console& console, int64_t num_steps, const rl::LoggerConfig& config)
    : files_(files), console_(console), num_steps_(num_steps), config_(config) {}

bool RunLog::is_shown(int64_t step) const {
  return step == 1 || step == num_steps_ || (step > 0 && step % config_.console_period == 0);
}

void RunLog::on_message(const std::string& line) { console_.message(line); }

void RunLog::on_warning(const std::string& line) { console_.warning(line); }

void RunLog::on_memory_plan(const rl::MemoryPlan& plan) {
  console_.message(rl::plan_table(plan));
  for (const std::string& warning :
       {memory_warning(plan), few_cores_warning(plan.device, usable_cores())}) {
    if (!warning.empty()) console_.warning(warning);
  }
}

void RunLog::on_measured_memory(const rl::MemoryPlan& plan, const rl::MeasuredMemory& measured) {
  console_.message(rl::comparison_table(plan, measured));
}

void RunLog::on_step(int64_t step, const rl::MetricSet& metrics) {
  files_.write_step(step, metrics);
  if (is_shown(step)) console_.step(step, num_steps_, metrics);
}

void RunLog::on_progress(const std::string& phase, int64_t done, int64_t total) {
  console_.progress(phase, done, total);
}

void RunLog::on_samples(int64_t step, const rl::SampleBatch& samples) {
  files_.write_samples(step, samples, config_.sample_compression == "gzip");
  if (!is_shown(step)) return;
  const auto most = static_cast<size_t>(config_.num_samples_to_print);
  for (size_t i = 0; i < std::min(most, samples.lines.size()); ++i) {
    console_.sample(samples.lines[i]);
  }
}

}  // namespace grpo::app
