// GtpPass: one run through a UseSchedule over a ShardedParameterStore: gathers before use, frees
// after, reduce-scatters a gradient after its last scheduled contribution. On a GPU gathers run
// ahead of their uses and reduce-scatters behind, on the store's communication stream.
//
// A pass makes its gradients apart from the store's and adds each, whole, to what earlier passes
// left: over gtp_remat one rank's after the other's. So the sum over micro-batches 0, 1, 2, ... has
// one order, whether one rank runs them in turn or several run some at a time.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "model/core/device_stream.h"
#include "parallel/store/sharded_parameter_store.h"

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

  // A gather that was started and whose use comes later.
  struct GatherAhead {
    size_t use;  // of the schedule
    Buffer buffer;
    DeviceEvent arrived;
  };
  // A reduce-scatter that may still run.
  struct PendingScatter {
    Buffer gradient;
    DeviceEvent done;
  };

  void release(ParameterId parameter) noexcept override;
  const ParameterUse& expect_next(ParameterId parameter, const char* call) const;
  Tensor materialize(ParameterId parameter);
  bool is_replicated(ParameterId parameter) const;
  Tensor replicated_gradients() const;
  bool is_gathered(ParameterId parameter) const;
  // Starts gathers in the order of use until `count` have been started and not used.
  void start_gathers(size_t count);
  GatherAhead start_gather(size_t use);
  void reduce_scatter(ParameterId parameter, Buffer buffer);
  void add_replicated_gradients();
  // Until at most `count` reduce-scatters may still run: work after this comes after the others.
  void settle_scatters(size_t count);
  // What the communication stream is given from here on comes after all work so far.
  void follow_work();
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
  Buffer replicated_;       // this pass's gradients of the replicated arena; empty without any
  size_t num_ahead_;        // gathers to keep ahead of the use in progress
  size_t next_gather_ = 0;  // first use whose gather was not looked at
  std::deque<GatherAhead> ahead_;  // in the order of use
  std::deque<PendingScatter> scatters_;
  DeviceEvent work_;  // the last place of follow_work()
};

}  // namespace grpo::parallel
