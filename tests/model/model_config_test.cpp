#include "model/files/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/core/errors.h"
#include "tests/model/scratch_folder.h"

namespace grpo::model {
namespace {

using nlohmann::json;

json published_config() {
  return json{{"architectures", {"Qwen2ForCausalLM"}},
              {"attention_dropout", 0.0},
              {"bos_token_id", 1},
              {"eos_token_id", 2},
              {"hidden_act", "silu"},
              {"hidden_size", 64},
              {"intermediate_size", 160},
              {"max_position_embeddings", 512},
              {"max_window_layers", 21},
              {"model_type", "qwen2"},
              {"num_attention_heads", 4},
              {"num_hidden_layers", 3},
              {"num_key_value_heads", 2},
              {"rms_norm_eps", 1e-05},
              {"rope_theta", 5000.0},
              {"sliding_window", 32768},
              {"tie_word_embeddings", true},
              {"torch_dtype", "bfloat16"},
              {"use_sliding_window", false},
              {"vocab_size", 512}};
}

ModelConfig read(const json& config) {
  const ScratchFolder folder;
  folder.write("config.json", config.dump());
  return read_model_config(folder.path());
}

std::string refusal(const json& config) {
  return message_of<DataError>([&] { read(config); });
}

json with(const std::string& key, const json& value) {
  json config = published_config();
  config[key] = value;
  return config;
}

TEST(ModelConfig, ReadsThePublishedSpelling) {
  const ModelConfig config = read(published_config());
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.qkv_size(), 128);
  EXPECT_EQ(config.intermediate_size, 160);
  EXPECT_EQ(config.vocab_size, 512);
  EXPECT_EQ(config.max_position_embeddings, 512);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 5000.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.dtype, DType::kBfloat16);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
}

TEST(ModelConfig, ReadsTheNewerSpelling) {
  json config = published_config();
  config.erase("rope_theta");
  config.erase("torch_dtype");
  config["rope_parameters"] = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
  config["dtype"] = "float32";
  config["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  config["sliding_window"] = nullptr;
  const ModelConfig result = read(config);
  EXPECT_EQ(result.rope_theta, 10000.0);
  EXPECT_EQ(result.dtype, DType::kFloat32);
}

TEST(ModelConfig, HeadDimIsExplicitOrDerived) {
  EXPECT_EQ(read(with("head_dim", 24)).head_dim, 24);
  EXPECT_EQ(read(with("head_dim", nullptr)).head_dim, 16);
  json config = with("hidden_size", 66);
  expect_parts(refusal(config), {"config.json", "hidden_size is 66", "num_attention_heads (4)"});
  config["head_dim"] = 16;
  EXPECT_EQ(read(config).hidden_size, 66);
}

TEST(ModelConfig, StopIdsOfBothFilesAreUsed) {
  const ScratchFolder folder;
  folder.write("config.json", with("eos_token_id", {7, 5}).dump());
  folder.write("generation_config.json", R"({"eos_token_id": [5, 9]})");
  EXPECT_EQ(read_model_config(folder.path()).eos_token_ids, (std::vector<int32_t>{7, 5, 9}));
  folder.write("generation_config.json", R"({"eos_token_id": 512})");
  expect_parts(message_of<DataError>([&] { read_model_config(folder.path()); }),
               {"generation_config.json", "eos_token_id is 512", "0 to 511"});
}

struct Hostile {
  std::string key;
  json value;
  std::string expected;
};

TEST(ModelConfig, HostileValuesAreRefusedByKeyAndValue) {
  const std::vector<Hostile> cases = {
      {"hidden_size", 0, "hidden_size is 0; 1 to"},
      {"num_hidden_layers", -3, "num_hidden_layers is -3; 1 to"},
      {"num_attention_heads", 0, "num_attention_heads is 0; 1 to"},
      {"num_key_value_heads", 3, "must be a multiple of num_key_value_heads (3)"},
      {"num_key_value_heads", 8, "must be a multiple of num_key_value_heads (8)"},
      {"head_dim", 12, "head_dim is 12; it must be a multiple of 8"},
      {"head_dim", -8, "head_dim is -8; 1 to"},
      {"intermediate_size", 160.5, "intermediate_size is 160.5; an integer"},
      {"intermediate_size", "160", "intermediate_size is \"160\"; an integer"},
      {"vocab_size", 9223372036854775807, "vocab_size is 9223372036854775807; 1 to"},
      {"vocab_size", 18446744073709551615u, "vocab_size is 18446744073709551615; an integer"},
      {"hidden_size", 1e30, "hidden_size is 1e+30; an integer"},
      {"hidden_size", 4294967296, "hidden_size is 4294967296; 1 to"},
      {"max_position_embeddings", -1, "max_position_embeddings is -1; 1 to"},
      {"rms_norm_eps", 0.0, "rms_norm_eps is 0; 1e-30 to 1"},
      {"rms_norm_eps", "tiny", "rms_norm_eps is \"tiny\"; a number"},
      {"rope_theta", -1.0, "rope_theta is -1; 1 to"},
      {"rope_scaling", {{"type", "yarn"}}, "rope_scaling is \"yarn\"; RoPE scaling"},
      {"rope_parameters", {{"rope_theta", 1.5}}, "rope_theta is 1.5; but the top level says 5000"},
      {"rope_parameters", {{"rope_type", "linear"}}, "rope_type is \"linear\"; RoPE scaling"},
      {"tie_word_embeddings", 1, "tie_word_embeddings is 1; true or false"},
      {"torch_dtype", "float16", "torch_dtype is \"float16\"; \"float32\" or"},
      {"model_type", "llama", "model_type is \"llama\"; \"qwen2\""},
      {"architectures", {"LlamaForCausalLM"}, "architectures is \"LlamaForCausalLM\"; [\"Qwen2"},
      {"architectures", json::array(), "architectures is a list of 0; [\"Qwen2"},
      {"hidden_act", "gelu", "hidden_act is \"gelu\"; \"silu\""},
      {"use_sliding_window", true, "use_sliding_window is true; sliding-window"},
      {"layer_types", {"full_attention", "sliding_attention"}, "layer_types is a list of 2; every"},
      {"attention_dropout", 0.1, "attention_dropout is 0.1; dropout"},
      {"quantization_config", {{"bits", 4}}, "quantization_config is an object; quantized"},
      {"eos_token_id", 512, "eos_token_id is 512; 0 to 511"},
      {"eos_token_id", -1, "eos_token_id is -1; token ids"},
      {"eos_token_id", {1, 2.5}, "eos_token_id is 2.5; an integer"}};
  for (const Hostile& item : cases) {
    SCOPED_TRACE(item.key + " = " + item.value.dump());
    expect_parts(refusal(with(item.key, item.value)), {"config.json: ", item.expected});
  }
}

TEST(ModelConfig, MissingKeysAreNamed) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "vocab_size", "rope_theta"}) {
    json config = published_config();
    config.erase(key);
    expect_parts(refusal(config), {"config.json: ", key, "missing"});
  }
  json config = published_config();
  config.erase("model_type");
  EXPECT_EQ(read(config).hidden_size, 64);
  config.erase("architectures");
  expect_parts(refusal(config), {"model_type and architectures are both missing"});
}

TEST(ModelConfig, FilesThatAreNotAConfigAreRefused) {
  const ScratchFolder folder;
  const auto problem = [&] {
    return message_of<DataError>([&] { read_model_config(folder.path()); });
  };
  expect_parts(problem(), {"config.json: No such file"});
  folder.write("config.json", "{\"hidden_size\": 64,");
  expect_parts(problem(), {"config.json: not valid JSON: parse error at line 1, column"});
  folder.write("config.json", "[1]");
  expect_parts(problem(), {"config.json: holds a list of 1, expected a JSON object"});
  folder.write("config.json", R"({"hidden_size": 64, "hidden_size": 32})");
  expect_parts(problem(), {"config.json: duplicate key \"hidden_size\""});
  folder.write("config.json", std::string(100000, '['));
  expect_parts(problem(), {"config.json: JSON nested deeper than"});
  folder.write("config.json", "{\"a\": \"\xff\n\"}");
  expect_parts(problem(), {"config.json: not valid JSON"});
}

TEST(ModelConfig, WrittenConfigReadsBackEqual) {
  for (const bool explicit_head_dim : {false, true}) {
    ModelConfig config = read(published_config());
    if (explicit_head_dim) config.head_dim = 24;
    config.rms_norm_eps = 1e-6 / 3.0;
    config.eos_token_ids = {3, 1};
    const ScratchFolder folder;
    write_model_config(config, folder.path());
    EXPECT_EQ(folder.num_files(), 1u);
    const ModelConfig again = read_model_config(folder.path());
    EXPECT_EQ(again.head_dim, config.head_dim);
    EXPECT_EQ(again.hidden_size, config.hidden_size);
    EXPECT_EQ(again.num_layers, config.num_layers);
    EXPECT_EQ(again.num_heads, config.num_heads);
    EXPECT_EQ(again.num_kv_heads, config.num_kv_heads);
    EXPECT_EQ(again.intermediate_size, config.intermediate_size);
    EXPECT_EQ(again.vocab_size, config.vocab_size);
    EXPECT_EQ(again.max_position_embeddings, config.max_position_embeddings);
    EXPECT_EQ(again.rms_norm_eps, config.rms_norm_eps);
    EXPECT_EQ(again.rope_theta, config.rope_theta);
    EXPECT_EQ(again.tie_word_embeddings, config.tie_word_embeddings);
    EXPECT_EQ(again.dtype, config.dtype);
    EXPECT_EQ(again.eos_token_ids, config.eos_token_ids);
  }
}

// Parameter counts as published with the models.
int64_t num_parameters(const ModelConfig& c) {
  const int64_t layer = c.qkv_size() * (c.hidden_size + 1) + c.hidden_size * c.q_size() +
                        3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size;
  return (c.tie_word_embeddings ? 1 : 2) * c.vocab_size * c.hidden_size + c.num_layers * layer +
         c.hidden_size;
}

TEST(ModelConfig, PresetsHaveThePublishedSizes) {
  const std::vector<std::pair<std::string, int64_t>> expected = {{"qwen2.5-0.5b", 494032768},
                                                                 {"qwen2.5-1.5b", 1543714304},
                                                                 {"qwen2.5-3b", 3085938688},
                                                                 {"qwen2.5-7b", 7615616512}};
  ASSERT_EQ(preset_names().size(), expected.size());
  for (const auto& [name, parameters] : expected) {
    const auto config = preset_model_config(name);
    ASSERT_TRUE(config.has_value()) << name;
    EXPECT_EQ(find_problem(*config), std::nullopt) << name;
    EXPECT_EQ(num_parameters(*config), parameters) << name;
  }
  EXPECT_FALSE(preset_model_config("qwen2.5-14b").has_value());
}

}  // namespace
}  // namespace grpo::model
