// The parameters of a Qwen2-style decoder: fused storage under Hugging Face's logical names.
#pragma once

#include <vector>

#include "model/core/parameter_spec.h"
#include "model/files/model_config.h"

namespace grpo::model {

struct LayerParameters {
  ParameterId input_norm;      // [D]
  ParameterId qkv_weight;      // [(H + 2G) K, D]: q, then k, then v
  ParameterId qkv_bias;        // [(H + 2G) K]
  ParameterId o_weight;        // [D, H K]
  ParameterId post_norm;       // [D]
  ParameterId gate_up_weight;  // [2F, D]: gate, then up
  ParameterId down_weight;     // [D, F]
};

struct TransformerParameters {
  std::vector<ParameterSpec> specs;
  ParameterId embedding;  // [V, D]
  std::vector<LayerParameters> layers;
  ParameterId final_norm;  // [D]
  ParameterId head;        // [V, D]; the embedding itself when tied
};

// `init_std` is the standard deviation of random matrices; norms start at 1, biases at 0.
TransformerParameters make_transformer_parameters(const ModelConfig& config, float init_std);

}  // namespace grpo::model
