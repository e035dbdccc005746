#include "model/layers/linear_gradients.h"

#include "model/ops/linear.h"
#include "model/ops/rms_norm.h"

namespace grpo::model {

void linear_backward(Pass& pass, ParameterId weight, const LinearBackward& t, OpContext& ctx) {
  {
    const MaterializedWeight w = pass.use(weight);
    ops::linear_backward_input(t.dx, t.dout, w.tensor(), false, ctx);
  }
  const GradientView gradient = pass.begin_grad(weight);
  ops::linear_backward_weight(gradient.tensor, t.dout, t.x, gradient.accumulate, ctx);
  pass.finish_grad(weight);
}

void bias_backward(Pass& pass, ParameterId bias, const Tensor& dout, OpContext& ctx) {
  const GradientView gradient = pass.begin_grad(bias);
  ops::linear_backward_bias(gradient.tensor, dout, gradient.accumulate, ctx);
  pass.finish_grad(bias);
}

void norm_backward(Pass& pass, ParameterId weight, const NormBackward& t, OpContext& ctx) {
  const MaterializedWeight w = pass.use(weight);
  const GradientView gradient = pass.begin_grad(weight);
  ops::rms_norm_backward({.dx = t.dx,
                          .accumulate_dx = true,
                          .dweight = gradient.tensor,
                          .accumulate_dweight = gradient.accumulate},
                         t.dout, t.x, w.tensor(), t.rstd, ctx);
  pass.finish_grad(weight);
}

}  // namespace grpo::model
