// Rig: the program's own objects as a run of one rank builds them, with random weights and made-up
// rollouts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/ops/matrix_library.h"
#include "parallel/comm/rank_device.h"
#include "rl/loop/policy_update.h"
#include "rl/models/optimizer.h"
#include "rl/models/policy_models.h"
#include "tools/benchmark/options.h"

namespace grpo::benchmark {

double median(std::vector<double> values);

// One thread.
class Rig {
 public:
  explicit Rig(const Options& options);

  const Options& options() const { return options_; }
  const rl::RunConfig& config() const { return config_; }
  const std::string& device_description() const { return device_.description; }
  Device device() const { return device_.device; }
  Allocator& allocator() { return allocator_; }
  OpContext& ctx() { return *ctx_; }
  MatrixLibrary& matrix_library() { return matrix_library_; }
  rl::PolicyModels& models() { return models_; }
  rl::Optimizer& optimizer() { return optimizer_; }
  const model::TransformerParameters& parameters() const { return parameters_; }
  model::TransformerOptions transformer_options() const {
    return rl::transformer_options(config_.policy);
  }
  double activation_bytes() const { return static_cast<double>(dtype_size_bytes(dtype_)); }

  // Medians, over options().repeats, of the values that `measure` returns, element by element. A
  // first call, in a workspace that grows, is thrown away; the others have a workspace of what that
  // one took, as a run reserves it from its plan. Memory peaks belong to `phase`.
  std::vector<double> medians(const std::string& phase,
                              const std::function<std::vector<double>()>& measure);
  size_t peak_bytes(const std::string& phase) const;

  // Seconds until the device is done with what `work` gives it.
  double seconds(const std::function<void()>& work);

  // Random tokens; every token but the first ones is a response's.
  std::vector<rl::RolloutSequence> make_rollout(int64_t num_sequences) const;
  std::vector<rl::SequenceSignals> make_signals(
      const std::vector<rl::RolloutSequence>& sequences) const;
  std::vector<int32_t> random_tokens(uint64_t stream, int64_t count) const;

 private:
  void replace_workspace(size_t reserved_bytes);

  Options options_;
  rl::RunConfig config_;
  std::unique_ptr<parallel::World> world_;
  parallel::RankDevice device_;
  Allocator allocator_;
  MatrixLibrary matrix_library_;
  std::unique_ptr<Workspace> workspace_;
  std::unique_ptr<OpContext> ctx_;
  model::TransformerParameters parameters_;
  rl::PolicyModels models_;
  rl::Optimizer optimizer_;
  DType dtype_;
};

}  // namespace grpo::benchmark
