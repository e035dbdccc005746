// ParameterStore and Pass: how single-device model code gets at weights that may be sharded. Layers
// see whole (TP-local) weights and whole fp32 gradients; they never name a group.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/core/parameter_spec.h"
#include "model/core/tensor.h"
#include "model/core/use_schedule.h"

namespace grpo {

class Pass;

// A whole weight, valid for the life of this object. Move-only; releases the gathered buffer when
// it dies.
class MaterializedWeight {
 public:
  MaterializedWeight(Pass* pass, ParameterId parameter, Tensor tensor)
      : pass_(pass), parameter_(parameter), tensor_(tensor) {}
  MaterializedWeight(MaterializedWeight&& other) noexcept
      : pass_(other.pass_), parameter_(other.parameter_), tensor_(other.tensor_) {
    other.pass_ = nullptr;
  }
  MaterializedWeight& operator=(MaterializedWeight&&) = delete;
  ~MaterializedWeight();

  // [rows, cols], or [rows] for a vector, in the store's compute dtype; padding rows are not
  // visible.
  const Tensor& tensor() const { return tensor_; }

 private:
  Pass* pass_;
  ParameterId parameter_;
  Tensor tensor_;
};

// Where a gradient contribution goes.
struct GradientView {
  Tensor tensor;    // shape of the whole weight, float32
  bool accumulate;  // add to what is there; otherwise overwrite every element
};

// One run through a UseSchedule. Uses must come in the scheduled order; anything else is an
// InternalError.
class Pass {
 public:
  virtual ~Pass() = default;

  // The next scheduled use of a parameter, which must be one that reads the weight.
  virtual MaterializedWeight use(ParameterId parameter) = 0;
  // The gradient of a use: between begin and finish the caller writes one contribution. In a
  // scheduled use that also reads, `use` comes first. Gradients of every pass add up in the store
  // until zero_gradients().
  virtual GradientView begin_grad(ParameterId parameter) = 0;
  virtual void finish_grad(ParameterId parameter) = 0;
  // Ends the pass: nothing may be in flight, nothing materialized, and every use must have
  // happened.
  virtual void finish() = 0;

 private:
  friend class MaterializedWeight;
  virtual void release(ParameterId parameter) noexcept = 0;
};

inline MaterializedWeight::~MaterializedWeight() {
  if (pass_ != nullptr) pass_->release(parameter_);
}

// The weights of one model on one rank.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  virtual const std::vector<ParameterSpec>& specs() const = 0;
  virtual DType dtype() const = 0;  // of the weights that passes see
  // Starts a pass; at most one at a time. `schedule` outlives the pass.
  virtual std::unique_ptr<Pass> begin_pass(const UseSchedule& schedule) = 0;
  // Grows whenever any weight changes; whatever is derived from weights (KV) carries it.
  virtual uint64_t version() const = 0;
  // Whether every pass sees each weight at one place, so that recorded work finds it there.
  virtual bool has_fixed_weights() const { return false; }
};

}  // namespace grpo
