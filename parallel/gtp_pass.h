// GtpPass: one run through a UseSchedule over a ShardedParameterStore: gathers just before use,
// frees after, reduce-scatters a gradient after its last scheduled contribution.
#pragma once

#include <map>
#include <vector>

#include "parallel/sharded_parameter_store.h"

namespace grpo::parallel {

class GtpPass : public Pass {
 public:
  GtpPass(ShardedParameterStore& store, const UseSchedule& schedule);
  ~GtpPass() override;

  MaterializedWeight use(ParameterId parameter) override;
  GradientView begin_grad(ParameterId parameter) override;
  void finish_grad(ParameterId parameter) override;
  void finish() override;

 private:
  // A full-size gradient that waits for all of its scheduled contributions.
  struct PendingGradient {
    Buffer buffer;
    int num_contributions = 0;
  };

  void release(ParameterId parameter) noexcept override;
  const ParameterUse& expect_next(ParameterId parameter, const char* call) const;
  Tensor gather(ParameterId parameter);
  void reduce_scatter(ParameterId parameter, Buffer buffer);
  Tensor visible(ParameterId parameter, void* data, DType dtype) const;

  ShardedParameterStore& store_;
  const UseSchedule& schedule_;
  size_t cursor_ = 0;               // the use that comes next, or is in progress
  bool read_done_ = false;          // of a use that reads and contributes
  bool grad_open_ = false;          // between begin_grad and finish_grad
  std::vector<int> contributions_;  // scheduled, per parameter
  std::vector<std::pair<ParameterId, Buffer>>
      gathered_;  // materialized now; buffer empty for a local view
  std::map<ParameterId, PendingGradient> pending_;
};

}  // namespace grpo::parallel
