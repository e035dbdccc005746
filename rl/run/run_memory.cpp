#include "rl/run/run_memory.h"

#include "parallel/comm/host_collectives.h"

namespace grpo::rl {

namespace {

DataLengths lengths_of(const RunData& data) {
  DataLengths lengths{.train = data.train.lengths(), .validation = std::nullopt};
  for (const PromptDataset& dataset : data.validation) {
    const ValidationLengths own{.lengths = dataset.lengths(), .most_examples = dataset.size()};
    lengths.validation = lengths.validation ? lengths.validation->covering(own) : own;
  }
  return lengths;
}

}  // namespace

RunMemory::RunMemory(RunContext& run, const model::ModelConfig& model, const RunData& data)
    : run_(run), plan_(plan_memory(run.config, model, lengths_of(data), run.ctx.device)) {
  if (run_.reports()) run_.observer.on_memory_plan(plan_);
  run_.workspace.reserve(own_plan().workspace_bytes);
}

void RunMemory::add_metrics(MetricSet& metrics) const {
  const std::map<std::string, size_t> peaks = run_.allocator.peak_bytes_by_phase();
  for (const PhasePlan& planned : own_plan().phases) {
    const std::string prefix = "memory/" + planned.phase + "/";
    metrics.set(prefix + "planned_bytes", static_cast<double>(planned.peak.bytes));
    const auto measured = peaks.find(planned.phase);
    if (measured != peaks.end()) {
      metrics.set(prefix + "peak_bytes", static_cast<double>(measured->second));
    }
  }
}

void RunMemory::compare(Communicator& everyone) const {
  const std::map<std::string, PhasePeak> peaks = run_.allocator.peaks();
  MeasuredMemory measured;
  measured.ranks.resize(plan_.ranks.size());
  for (const PhasePlan& phase : own_plan().phases) {
    const auto found = peaks.find(phase.phase);
    const PhasePeak own = found == peaks.end() ? PhasePeak() : found->second;
    const auto bytes = parallel::all_gather_double(everyone, static_cast<double>(own.bytes));
    const auto used =
        parallel::all_gather_double(everyone, static_cast<double>(own.workspace.total()));
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      measured.ranks[rank].push_back(
          {static_cast<size_t>(bytes[rank]), static_cast<size_t>(used[rank])});
    }
  }
  if (run_.reports()) run_.observer.on_measured_memory(plan_, measured);
}

}  // namespace grpo::rl
