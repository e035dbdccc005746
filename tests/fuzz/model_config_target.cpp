#include <filesystem>

#include "model/core/errors.h"
#include "model/files/model_config.h"
#include "tests/fuzz/fuzz_targets.h"

namespace grpo::fuzz {

void fuzz_model_config(std::string_view bytes) {
  const auto [config_text, generation_text] = two_texts(bytes);
  scratch_file("model/config.json", config_text);
  std::filesystem::remove(scratch_folder() + "/model/generation_config.json");
  if (!generation_text.empty()) scratch_file("model/generation_config.json", generation_text);
  try {
    const model::ModelConfig config = model::read_model_config(scratch_folder() + "/model");
    CHECK(!model::find_problem(config), "an accepted config has a problem");
    std::filesystem::create_directories(scratch_folder() + "/again");
    model::write_model_config(config, scratch_folder() + "/again");
    const model::ModelConfig again = model::read_model_config(scratch_folder() + "/again");
    CHECK(again.qkv_size() == config.qkv_size() && again.vocab_size == config.vocab_size &&
              again.rope_theta == config.rope_theta && again.rms_norm_eps == config.rms_norm_eps &&
              again.eos_token_ids == config.eos_token_ids,
          "a written config reads back as another");
  } catch (const DataError&) {
  }
}

}  // namespace grpo::fuzz
