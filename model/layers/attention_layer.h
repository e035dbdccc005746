// The attention half of a decoder layer: norm, QKV, RoPE, attention, output projection, residual.
#pragma once

#include <vector>

#include "model/core/parameter_store.h"
#include "model/layers/layer_inputs.h"
#include "model/layers/residual_stream.h"
#include "model/ops/op_context.h"

namespace grpo::model {

struct AttentionLayerParameters {
  ParameterId norm;
  ParameterId qkv_weight;
  ParameterId qkv_bias;
  ParameterId o_weight;
};

// Stateless but for its description; thread-compatible.
class AttentionLayer {
 public:
  AttentionLayer(const LayerShape& shape, const AttentionLayerParameters& parameters)
      : shape_(shape), parameters_(parameters) {}

  // Uses in the order forward() and backward() make them.
  void append_forward_uses(std::vector<ParameterUse>& uses) const;
  void append_backward_uses(std::vector<ParameterUse>& uses) const;

  // Adds attention(norm(stream)) to the stream. Writes K and V into inputs.kv. With `saved`, keeps
  // what backward needs; the saved x, keys and values are then the stream's and the caller's.
  void forward(Pass& pass, ResidualStream& stream, const LayerInputs& inputs,
               AttentionActivations* saved, OpContext& ctx) const;

  // dx <- dx + d attention(norm(x)) / d x, for the output's gradient in dx.
  void backward(Pass& pass, const Tensor& dx,  // [T, D] A, in place
                const LayerInputs& inputs, const AttentionActivations& saved, OpContext& ctx) const;

 private:
  LayerShape shape_;
  AttentionLayerParameters parameters_;
};

}  // namespace grpo::model
