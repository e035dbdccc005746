// One step's metrics, in a fixed order, and where they go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace grpo::rl {

class MetricSet {
 public:
  // A name is set once a step; setting it again is an InternalError.
  void set(const std::string& name, double value);
  std::optional<double> get(const std::string& name) const;
  const std::vector<std::pair<std::string, double>>& values() const { return values_; }

 private:
  std::vector<std::pair<std::string, double>> values_;
};

// A step's samples as they are stored and shown.
struct SampleBatch {
  std::vector<std::string> lines;      // JSON, one per sample
  size_t num_recorded = 0;             // the first lines, to be stored; the others are shown alone
  std::vector<std::byte> kept_tokens;  // of the recorded samples; empty without a filter
};

struct MeasuredMemory;
struct MemoryPlan;

// Receives what a run produces, on world rank 0 only. Implemented in app/.
class RunObserver {
 public:
  virtual ~RunObserver() = default;

  // Before the first step: the last one, should nothing stop the run.
  virtual void on_start(int64_t /*num_steps*/) {}
  virtual void on_message(const std::string& line) = 0;  // information for the console
  virtual void on_warning(const std::string& line) = 0;
  // Before anything large is allocated.
  virtual void on_memory_plan(const MemoryPlan&) {}
  // At the end of the run.
  virtual void on_measured_memory(const MemoryPlan&, const MeasuredMemory&) {}
  virtual void on_step(int64_t step, const MetricSet& metrics) = 0;  // step is 1-based; 0 is setup
  virtual void on_progress(const std::string& phase, int64_t done, int64_t total) = 0;
  // Called once per step that has samples to store or to show.
  virtual void on_samples(int64_t step, const SampleBatch& samples) = 0;
};

}  // namespace grpo::rl
