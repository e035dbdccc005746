#include "model/layers/attention_layer.h"

#include <cmath>

#include "model/layers/linear_gradients.h"
#include "model/ops/attention.h"
#include "model/ops/linear.h"
#include "model/ops/rope.h"

namespace grpo::model {

float LayerShape::attention_scale() const {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

void AttentionLayer::append_forward_uses(std::vector<ParameterUse>& uses) const {
  for (const ParameterId id :
       {parameters_.norm, parameters_.qkv_weight, parameters_.qkv_bias, parameters_.o_weight}) {
    uses.push_back({id, UsePhase::kForward, true, false});
  }
}

void AttentionLayer::append_backward_uses(std::vector<ParameterUse>& uses) const {
  uses.push_back({parameters_.o_weight, UsePhase::kBackward, true, true});
  uses.push_back({parameters_.qkv_bias, UsePhase::kBackward, false, true});
  uses.push_back({parameters_.qkv_weight, UsePhase::kBackward, true, true});
  uses.push_back({parameters_.norm, UsePhase::kBackward, true, true});
}

void AttentionLayer::forward(Pass& pass, ResidualStream& stream, const LayerInputs& inputs,
                             AttentionActivations* saved, OpContext& ctx) const {
  const Shape shape = stream.x.shape();
  const int64_t t = shape[0];
  const DType a = stream.x.dtype();
  AttentionActivations act;
  if (saved != nullptr) {
    act.rstd = ctx.workspace.take(DType::kFloat32, {t});
    act.lse = ctx.workspace.take(DType::kFloat32, {t, shape_.num_heads});
  }
  act.normed = ctx.workspace.take(a, shape);
  act.q = ctx.workspace.take(a, {t, shape_.num_heads, shape_.head_dim});
  act.out = ctx.workspace.take(a, {t, shape_.num_heads, shape_.head_dim});
  act.keys = inputs.kv.keys;
  act.values = inputs.kv.values;
  {
    const MaterializedWeight norm = pass.use(parameters_.norm);
    normalize(stream, act.normed, act.rstd, norm.tensor(), shape_.rms_norm_eps, saved != nullptr,
              ctx);
    act.x = stream.x;
  }
  const Workspace::Scope scope(ctx.workspace);
  {
    const Tensor qkv = ctx.workspace.take(a, {t, shape_.qkv_size()});
    const MaterializedWeight weight = pass.use(parameters_.qkv_weight);
    const MaterializedWeight bias = pass.use(parameters_.qkv_bias);
    ops::linear_forward(qkv, act.normed, weight.tensor(), bias.tensor(), ctx);
    ops::qkv_rope_forward(act.q, inputs.kv.keys, inputs.kv.values, qkv, inputs.positions,
                          inputs.rope_table, ctx);
  }
  ops::attention_forward(act.out, act.lse, act.q, inputs.kv, shape_.attention_scale(), ctx);
  const MaterializedWeight weight = pass.use(parameters_.o_weight);
  ops::linear_forward(stream.delta, act.out.reshaped({t, shape_.num_heads * shape_.head_dim}),
                      weight.tensor(), Tensor(), ctx);
  stream.is_pending = true;
  if (saved != nullptr) *saved = act;
}

void AttentionLayer::backward(Pass& pass, const Tensor& dx, const LayerInputs& inputs,
                              const AttentionActivations& saved, OpContext& ctx) const {
  const Workspace::Scope scope(ctx.workspace);
  const int64_t t = dx.size(0);
  const DType a = dx.dtype();
  const int64_t q_size = shape_.num_heads * shape_.head_dim;
  const Tensor dattention = ctx.workspace.take(a, {t, q_size});
  linear_backward(pass, parameters_.o_weight,
                  {.dx = dattention, .dout = dx, .x = saved.out.reshaped({t, q_size})}, ctx);
  const Tensor dq = ctx.workspace.take(a, saved.q.shape());
  const Tensor dkeys = ctx.workspace.take(a, {t, shape_.num_kv_heads, shape_.head_dim});
  const Tensor dvalues = ctx.workspace.take(a, dkeys.shape());
  KvView kv = inputs.kv;
  kv.keys = saved.keys;
  kv.values = saved.values;
  ops::attention_backward(
      {.dq = dq, .dkeys = dkeys, .dvalues = dvalues}, dattention.reshaped(saved.out.shape()),
      {.q = saved.q, .out = saved.out, .lse = saved.lse}, kv, shape_.attention_scale(), ctx);
  const Tensor dqkv = ctx.workspace.take(a, {t, shape_.qkv_size()});
  ops::qkv_rope_backward(dqkv, dq, dkeys, dvalues, inputs.positions, inputs.rope_table, ctx);
  bias_backward(pass, parameters_.qkv_bias, dqkv, ctx);
  const Tensor dnormed = ctx.workspace.take(a, dx.shape());
  linear_backward(pass, parameters_.qkv_weight, {.dx = dnormed, .dout = dqkv, .x = saved.normed},
                  ctx);
  norm_backward(pass, parameters_.norm,
                {.dx = dx, .dout = dnormed, .x = saved.x, .rstd = saved.rstd}, ctx);
}

}  // namespace grpo::model
