// The feed-forward half of a decoder layer: norm, gate+up, SwiGLU, down projection, residual.
#pragma once

#include <vector>

#include "model/core/parameter_store.h"
#include "model/layers/layer_inputs.h"
#include "model/layers/residual_stream.h"
#include "model/ops/op_context.h"

namespace grpo::model {

struct MlpLayerParameters {
  ParameterId norm;
  ParameterId gate_up_weight;
  ParameterId down_weight;
};

// Stateless but for its description; thread-compatible.
class MlpLayer {
 public:
  MlpLayer(const LayerShape& shape, const MlpLayerParameters& parameters)
      : shape_(shape), parameters_(parameters) {}

  void append_forward_uses(std::vector<ParameterUse>& uses) const;
  void append_backward_uses(std::vector<ParameterUse>& uses) const;

  // Adds mlp(norm(stream)) to the stream. With `saved`, keeps what backward needs; the saved x is
  // the stream's.
  void forward(Pass& pass, ResidualStream& stream, MlpActivations* saved, OpContext& ctx) const;

  // dx <- dx + d mlp(norm(x)) / d x, for the output's gradient in dx.
  void backward(Pass& pass, const Tensor& dx,  // [T, D] A, in place
                const MlpActivations& saved, OpContext& ctx) const;

 private:
  LayerShape shape_;
  MlpLayerParameters parameters_;
};

}  // namespace grpo::model
