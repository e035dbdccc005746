#include "model/layers/mlp_layer.h"

#include "model/layers/linear_gradients.h"
#include "model/ops/linear.h"
#include "model/ops/swiglu.h"

namespace grpo::model {

void MlpLayer::append_forward_uses(std::vector<ParameterUse>& uses) const {
  for (const ParameterId id :
       {parameters_.norm, parameters_.gate_up_weight, parameters_.down_weight}) {
    uses.push_back({id, UsePhase::kForward, true, false});
  }
}

void MlpLayer::append_backward_uses(std::vector<ParameterUse>& uses) const {
  for (const ParameterId id :
       {parameters_.down_weight, parameters_.gate_up_weight, parameters_.norm}) {
    uses.push_back({id, UsePhase::kBackward, true, true});
  }
}

void MlpLayer::forward(Pass& pass, ResidualStream& stream, MlpActivations* saved,
                       OpContext& ctx) const {
  const Shape shape = stream.x.shape();
  const int64_t t = shape[0];
  const int64_t f = shape_.intermediate_size;
  const DType a = stream.x.dtype();
  MlpActivations act;
  if (saved != nullptr) act.rstd = ctx.workspace.take(DType::kFloat32, {t});
  act.normed = ctx.workspace.take(a, shape);
  act.gate_up = ctx.workspace.take(a, {t, 2 * f});
  act.gated = ctx.workspace.take(a, {t, f});
  {
    const MaterializedWeight norm = pass.use(parameters_.norm);
    normalize(stream, act.normed, act.rstd, norm.tensor(), shape_.rms_norm_eps, saved != nullptr,
              ctx);
    act.x = stream.x;
  }
  {
    const MaterializedWeight weight = pass.use(parameters_.gate_up_weight);
    ops::linear_forward(act.gate_up, act.normed, weight.tensor(), Tensor(), ctx);
  }
  ops::swiglu_forward(act.gated, act.gate_up, ctx);
  const MaterializedWeight weight = pass.use(parameters_.down_weight);
  ops::linear_forward(stream.delta, act.gated, weight.tensor(), Tensor(), ctx);
  stream.is_pending = true;
  if (saved != nullptr) *saved = act;
}

void MlpLayer::backward(Pass& pass, const Tensor& dx, const MlpActivations& saved,
                        OpContext& ctx) const {
  const Workspace::Scope scope(ctx.workspace);
  const DType a = dx.dtype();
  const Tensor dgated = ctx.workspace.take(a, saved.gated.shape());
  linear_backward(pass, parameters_.down_weight, {.dx = dgated, .dout = dx, .x = saved.gated}, ctx);
  const Tensor dgate_up = ctx.workspace.take(a, saved.gate_up.shape());
  ops::swiglu_backward(dgate_up, dgated, saved.gate_up, ctx);
  const Tensor dnormed = ctx.workspace.take(a, dx.shape());
  linear_backward(pass, parameters_.gate_up_weight,
                  {.dx = dnormed, .dout = dgate_up, .x = saved.normed}, ctx);
  norm_backward(pass, parameters_.norm,
                {.dx = dx, .dout = dnormed, .x = saved.x, .rstd = saved.rstd}, ctx);
}

}  // namespace grpo::model
