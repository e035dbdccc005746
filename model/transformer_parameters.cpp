#include "model/transformer_parameters.h"

#include <utility>

#include "model/core/errors.h"

namespace grpo::model {

namespace {

class SpecBuilder {
 public:
  explicit SpecBuilder(float init_std) : init_std_(init_std) {}

  ParameterId matrix(std::string name, std::vector<LogicalTensor> parts, TpCut cut) {
    return add({.name = std::move(name),
                .parts = std::move(parts),
                .tp_cut = cut,
                .gtp = GtpPlacement::kSharded,
                .init = InitKind::kNormal,
                .init_std = init_std_,
                .decays = true});
  }

  ParameterId vector(std::string name, std::vector<LogicalTensor> parts, TpCut cut, InitKind init) {
    return add({.name = std::move(name),
                .parts = std::move(parts),
                .tp_cut = cut,
                .gtp = GtpPlacement::kReplicated,
                .init = init,
                .init_std = 0.0f,
                .decays = false});
  }

  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  ParameterId add(ParameterSpec spec) {
    specs_.push_back(std::move(spec));
    return static_cast<ParameterId>(specs_.size() - 1);
  }

  float init_std_;
  std::vector<ParameterSpec> specs_;
};

LogicalTensor matrix_part(std::string name, int64_t rows, int64_t cols) {
  return {std::move(name), rows, cols, false};
}

LogicalTensor vector_part(std::string name, int64_t rows) {
  return {std::move(name), rows, 1, true};
}

LayerParameters add_layer(SpecBuilder& builder, const ModelConfig& c, int64_t index) {
  const std::string hf = fmt::format("model.layers.{}.", index);
  const std::string own = fmt::format("layers.{}.", index);
  const int64_t d = c.hidden_size;
  const int64_t f = c.intermediate_size;
  const std::string attn = hf + "self_attn.";
  LayerParameters layer;
  layer.input_norm =
      builder.vector(own + "input_norm", {vector_part(hf + "input_layernorm.weight", d)},
                     TpCut::kReplicated, InitKind::kOnes);
  layer.qkv_weight = builder.matrix(own + "qkv.weight",
                                    {matrix_part(attn + "q_proj.weight", c.q_size(), d),
                                     matrix_part(attn + "k_proj.weight", c.kv_size(), d),
                                     matrix_part(attn + "v_proj.weight", c.kv_size(), d)},
                                    TpCut::kRows);
  layer.qkv_bias = builder.vector(own + "qkv.bias",
                                  {vector_part(attn + "q_proj.bias", c.q_size()),
                                   vector_part(attn + "k_proj.bias", c.kv_size()),
                                   vector_part(attn + "v_proj.bias", c.kv_size())},
                                  TpCut::kRows, InitKind::kZeros);
  layer.o_weight = builder.matrix(
      own + "o.weight", {matrix_part(attn + "o_proj.weight", d, c.q_size())}, TpCut::kColumns);
  layer.post_norm =
      builder.vector(own + "post_norm", {vector_part(hf + "post_attention_layernorm.weight", d)},
                     TpCut::kReplicated, InitKind::kOnes);
  layer.gate_up_weight = builder.matrix(own + "gate_up.weight",
                                        {matrix_part(hf + "mlp.gate_proj.weight", f, d),
                                         matrix_part(hf + "mlp.up_proj.weight", f, d)},
                                        TpCut::kRows);
  layer.down_weight = builder.matrix(
      own + "down.weight", {matrix_part(hf + "mlp.down_proj.weight", d, f)}, TpCut::kColumns);
  return layer;
}

}  // namespace

TransformerParameters make_transformer_parameters(const ModelConfig& config, float init_std) {
  SpecBuilder builder(init_std);
  TransformerParameters parameters;
  const int64_t v = config.vocab_size;
  const int64_t d = config.hidden_size;
  parameters.embedding = builder.matrix(
      "embedding", {matrix_part("model.embed_tokens.weight", v, d)}, TpCut::kPaddedRows);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    parameters.layers.push_back(add_layer(builder, config, i));
  }
  parameters.final_norm = builder.vector("final_norm", {vector_part("model.norm.weight", d)},
                                         TpCut::kReplicated, InitKind::kOnes);
  parameters.head =
      config.tie_word_embeddings
          ? parameters.embedding
          : builder.matrix("head", {matrix_part("lm_head.weight", v, d)}, TpCut::kPaddedRows);
  parameters.specs = builder.take();
  return parameters;
}

}  // namespace grpo::model
