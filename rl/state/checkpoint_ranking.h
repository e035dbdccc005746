// CheckpointRanking: which checkpoints are the best by a metric, and which may go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rl/state/checkpointing.h"

namespace grpo::rl {

// Deterministic; one thread. The value of a checkpoint is the metric's at its own step; one without
// a finite value ranks last, and of equal values the later step is better.
class CheckpointRanking {
 public:
  explicit CheckpointRanking(const CheckpointingConfig& config) : config_(config) {}

  // The checkpoint of `step`, in the order of steps.
  void add(int64_t step, std::optional<double> value);

  // Of the checkpoints of these steps, ascending, those that are neither among the newest to keep
  // nor among the best to keep. The last of `steps` is never among them.
  std::vector<int64_t> superfluous(const std::vector<int64_t>& steps) const;

  // Best first: {step, value}, those without a finite value left out.
  std::vector<std::pair<int64_t, double>> best_first() const;

  // All values so far, as a JSON object; restore() takes it back after a resume, unless it belongs
  // to another metric. Throws DataError for an object of another form.
  std::string state_json() const;
  void restore(const std::string& state_json);

 private:
  CheckpointingConfig config_;
  std::vector<std::pair<int64_t, double>> values_;  // finite ones, ascending in steps
};

// Removes the superfluous ones among the finished checkpoints of `parent` up to `newest_step`.
void remove_superfluous_checkpoints(const std::filesystem::path& parent,
                                    const CheckpointRanking& ranking, int64_t newest_step);

}  // namespace grpo::rl
