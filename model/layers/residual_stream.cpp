#include "model/layers/residual_stream.h"

#include "model/ops/residual.h"
#include "model/ops/rms_norm.h"

namespace grpo::model {

void normalize(ResidualStream& stream, const Tensor& normed, const Tensor& rstd,
               const Tensor& weight, float epsilon, bool keeps_x, OpContext& ctx) {
  if (!stream.is_pending) {
    ops::rms_norm_forward(normed, rstd, stream.x, weight, epsilon, ctx);
    return;
  }
  const Tensor sum = keeps_x ? ctx.workspace.take(stream.x.dtype(), stream.x.shape()) : stream.x;
  ops::residual_rms_norm_forward({.sum = sum, .normed = normed, .rstd = rstd}, stream.x,
                                 stream.delta, weight, epsilon, ctx);
  stream.x = sum;
  stream.is_pending = false;
}

void add_up(ResidualStream& stream, OpContext& ctx) {
  if (stream.is_pending) ops::residual_add(stream.x, stream.x, stream.delta, ctx);
  stream.is_pending = false;
}

}  // namespace grpo::model
