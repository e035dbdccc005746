// Optimizer: fp32 masters and moments of the elements this rank owns; the gradient norm and
// clipping.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/ops/op_context.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/store/sharded_parameter_store.h"
#include "rl/config/policy_config.h"

namespace grpo::rl {

// One thread; the store outlives it. State is sharded as the store's owned spans are: over
// gtp_remat and dp.
class Optimizer {
 public:
  // Masters start as the store's weights.
  Optimizer(const OptimizerConfig& config, parallel::ShardedParameterStore& store,
            Allocator& allocator);

  // Global norm over all logical elements, each counted once, after reduce_gradients(). Collective;
  // the same value on every rank, and of the same gradients under every layout. Throws
  // NonFiniteError naming the first tensor and rank whose gradient is not finite.
  double gradient_norm(OpContext& ctx) const;

  // One update of every owned element, then all replicas receive the weights. Collective. Gradients
  // are scaled by min(1, max_norm / (norm + 1e-6)); max_norm 0 does not clip. Throws NonFiniteError
  // naming the tensor when a weight is no longer finite.
  void step(double learning_rate, double gradient_norm, double max_norm, OpContext& ctx);

  // Masters follow weights that were written from outside.
  void reload_masters(OpContext& ctx);

  int64_t num_steps() const { return num_steps_; }
  // For checkpoints: masters and moments, and the step count that belongs to them.
  std::vector<parallel::StateArray> state_arrays() const;
  void set_num_steps(int64_t num_steps) { num_steps_ = num_steps; }

 private:
  Tensor state(const OwnedTensor& all, const parallel::OwnedSpan& span) const;
  using SpanValues = std::function<Tensor(const parallel::OwnedSpan&)>;
  // One an owned span.
  std::vector<float> largest_magnitudes(const SpanValues& values, OpContext& ctx) const;
  // Logical name of the first owned span whose values are not all finite; "" when all are.
  std::string first_not_finite(const SpanValues& values, OpContext& ctx) const;
  // Collective: NonFiniteError on every rank when any rank names a tensor.
  void throw_if_any(const std::string& own_name, const char* what) const;

  OptimizerConfig config_;
  parallel::ShardedParameterStore& store_;
  OwnedTensor master_;  // [owned elements] float32
  OwnedTensor m_;       // [owned elements] float32; empty for sgd
  OwnedTensor v_;
  int64_t num_steps_ = 0;
};

}  // namespace grpo::rl
