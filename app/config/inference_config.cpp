#include "app/config/inference_config.h"

#include "app/config/yaml_config_reader.h"

namespace grpo::app {

void InferenceConfig::visit(ConfigVisitor& visitor) {
  visitor.section("policy", "model and generation", [this](ConfigVisitor& inner) {
    visit_section(inner, "tokenizer", "text to tokens", policy.tokenizer);
    inner.field("precision", policy.precision,
                "float32 or bfloat16; null takes the weights file's dtype");
    inner.field("max_total_sequence_length", policy.max_total_sequence_length,
                "longest prompt plus response, in tokens");
    inner.section("sequence_packing", "micro-batches by tokens", [this](ConfigVisitor& packing) {
      policy.sequence_packing.visit_scoring(packing);
      if (packing.is_reading()) policy.sequence_packing.validate(packing);
    });
    inner.section("generation", "how completions are drawn", [this](ConfigVisitor& generation) {
      policy.generation.visit_sampling(generation);
      if (generation.is_reading()) policy.generation.validate(generation);
    });
    if (inner.is_reading()) policy.validate(inner);
  });
  visit_section(visitor, "parallel", "the mesh", parallel);
  visitor.section("numerics", "exactness",
                  [this](ConfigVisitor& inner) { numerics.visit_mode(inner); });
}

InferenceConfig load_inference_config(const std::string& model_dir,
                                      const std::vector<std::string>& overrides,
                                      ConfigOrigins* origins) {
  InferenceConfig initial;
  initial.policy.model_name = model_dir;
  return config_from_overrides(std::move(initial), overrides, origins);
}

}  // namespace grpo::app
