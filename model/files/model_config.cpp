#include "model/files/model_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "model/core/errors.h"
#include "model/files/atomic_file.h"
#include "model/files/input_file.h"
#include "model/files/json_text.h"
#include "model/ops/softmax_order.h"

namespace grpo::model {
namespace {

using nlohmann::json;

struct SizeLimit {
  const char* key;
  int64_t ModelConfig::*field;
  int64_t max;
};

// Generous bounds that keep every product of two sizes and the layer count inside int64.
// Keys are config.json's.
constexpr std::array<SizeLimit, 8> kSizeLimits = {{
    {"hidden_size", &ModelConfig::hidden_size, int64_t{1} << 20},
    {"num_hidden_layers", &ModelConfig::num_layers, 4096},
    {"num_attention_heads", &ModelConfig::num_heads, 65536},
    {"num_key_value_heads", &ModelConfig::num_kv_heads, 65536},
    {"head_dim", &ModelConfig::head_dim, 65536},
    {"intermediate_size", &ModelConfig::intermediate_size, int64_t{1} << 24},
    {"vocab_size", &ModelConfig::vocab_size, ops::kMaxVocabulary},
    {"max_position_embeddings", &ModelConfig::max_position_embeddings, int64_t{1} << 30},
}};

// One config file: typed access whose errors name file, key, value and what is allowed.
class KeyReader {
 public:
  KeyReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) {
      throw DataError(fmt::format("{}: holds {}, expected a JSON object", where_, shown(object_)));
    }
  }

  // null counts as absent, as in transformers.
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(const char* key, const json& value, const std::string& allowed) const {
    throw DataError(fmt::format("{}: {} is {}; {}", where_, key, shown(value), allowed));
  }

  std::optional<int64_t> integer(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return as_integer(key, *value);
  }

  int64_t as_integer(const char* key, const json& value) const {
    const bool too_large =
        value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
    if (!value.is_number_integer() || too_large) refuse(key, value, "an integer is expected");
    return value.get<int64_t>();
  }

  int64_t required_integer(const char* key) const {
    const auto value = integer(key);
    if (!value) throw DataError(fmt::format("{}: {} is missing", where_, key));
    return *value;
  }

  std::optional<double> number(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) refuse(key, *value, "a number is expected");
    return value->get<double>();
  }

  bool boolean(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(key, *value, "true or false is expected");
    return value->get<bool>();
  }

  std::optional<std::string> text(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) refuse(key, *value, "a string is expected");
    return value->get<std::string>();
  }

  // One id or a list of ids, in file order.
  std::vector<int32_t> token_ids(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return {};
    std::vector<int32_t> ids;
    const auto append = [&](const json& id) {
      const int64_t number = as_integer(key, id);
      if (number < 0 || number > INT32_MAX) refuse(key, id, "token ids are 0 to 2147483647");
      ids.push_back(static_cast<int32_t>(number));
    };
    if (value->is_array()) {
      for (const json& id : *value) append(id);
    } else {
      append(*value);
    }
    return ids;
  }

  const std::string& where() const { return where_; }

 private:
  const json& object_;
  std::string where_;
};

void check_architecture(const KeyReader& reader) {
  const auto model_type = reader.text("model_type");
  if (model_type && *model_type != "qwen2") {
    reader.refuse("model_type", *model_type, "\"qwen2\" is supported");
  }
  const json* architectures = reader.find("architectures");
  if (architectures != nullptr) {
    if (!architectures->is_array() || architectures->size() != 1 ||
        (*architectures)[0] != json("Qwen2ForCausalLM")) {
      const bool one = architectures->is_array() && architectures->size() == 1;
      reader.refuse("architectures", one ? (*architectures)[0] : *architectures,
                    "[\"Qwen2ForCausalLM\"] is supported");
    }
  }
  if (!model_type && architectures == nullptr) {
    throw DataError(
        fmt::format("{}: model_type and architectures are both missing; model_type \"qwen2\" "
                    "is supported",
                    reader.where()));
  }
}

void check_features(const KeyReader& reader) {
  const std::string activation = reader.text("hidden_act").value_or("silu");
  if (activation != "silu") reader.refuse("hidden_act", activation, "\"silu\" is supported");
  if (reader.boolean("use_sliding_window", false)) {
    reader.refuse("use_sliding_window", true, "sliding-window attention is not supported");
  }
  if (const json* types = reader.find("layer_types")) {
    const bool all_full =
        types->is_array() && std::all_of(types->begin(), types->end(), [](const json& type) {
          return type == json("full_attention");
        });
    if (!all_full) reader.refuse("layer_types", *types, "every entry must be \"full_attention\"");
  }
  if (const json* scaling = reader.find("rope_scaling")) {
    const KeyReader inner(*scaling, reader.where() + ": rope_scaling");
    const std::string type =
        inner.text("rope_type").value_or(inner.text("type").value_or("default"));
    if (type != "default") reader.refuse("rope_scaling", type, "RoPE scaling is not supported");
  }
  if (const auto dropout = reader.number("attention_dropout"); dropout && *dropout != 0.0) {
    reader.refuse("attention_dropout", *dropout, "dropout is not supported, 0 is expected");
  }
  if (const json* quantization = reader.find("quantization_config")) {
    reader.refuse("quantization_config", *quantization, "quantized weights are not supported");
  }
}

double read_rope_theta(const KeyReader& reader) {
  std::optional<double> theta = reader.number("rope_theta");
  if (const json* parameters = reader.find("rope_parameters")) {
    const KeyReader inner(*parameters, reader.where() + ": rope_parameters");
    const std::string type = inner.text("rope_type").value_or("default");
    if (type != "default") inner.refuse("rope_type", type, "RoPE scaling is not supported");
    const auto inner_theta = inner.number("rope_theta");
    if (theta && inner_theta && *theta != *inner_theta) {
      inner.refuse("rope_theta", *inner_theta, fmt::format("but the top level says {}", *theta));
    }
    if (inner_theta) theta = inner_theta;
  }
  if (!theta) {
    throw DataError(
        fmt::format("{}: rope_theta (or rope_parameters.rope_theta) is missing", reader.where()));
  }
  return *theta;
}

DType read_dtype(const KeyReader& reader) {
  const char* key = reader.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  const std::string name = reader.text(key).value_or("float32");
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBfloat16;
  reader.refuse(key, name, "\"float32\" or \"bfloat16\" is supported");
}

int64_t derived_head_dim(const KeyReader& reader, int64_t hidden_size, int64_t num_heads) {
  if (hidden_size <= 0 || num_heads <= 0) return 1;  // find_problem names the culprit
  if (hidden_size % num_heads != 0) {
    reader.refuse("hidden_size", hidden_size,
                  fmt::format("without head_dim it must be a multiple of num_attention_heads ({})",
                              num_heads));
  }
  return hidden_size / num_heads;
}

ModelConfig published(int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                      int64_t intermediate, int64_t vocab, bool tied) {
  return ModelConfig{.hidden_size = hidden,
                     .num_layers = layers,
                     .num_heads = heads,
                     .num_kv_heads = kv_heads,
                     .head_dim = hidden / heads,
                     .intermediate_size = intermediate,
                     .vocab_size = vocab,
                     .max_position_embeddings = 32768,
                     .rms_norm_eps = 1e-6,
                     .rope_theta = 1e6,
                     .tie_word_embeddings = tied,
                     .dtype = DType::kBfloat16,
                     .eos_token_ids = {151645, 151643}};  // <|im_end|>, <|endoftext|>
}

}  // namespace

int64_t largest_size(std::string_view key) {
  const auto limit = std::find_if(kSizeLimits.begin(), kSizeLimits.end(),
                                  [&](const SizeLimit& candidate) { return candidate.key == key; });
  CHECK(limit != kSizeLimits.end(), "no size is called {}", key);
  return limit->max;
}

std::optional<std::string> find_problem(const ModelConfig& config) {
  for (const SizeLimit& limit : kSizeLimits) {
    const int64_t value = config.*limit.field;
    if (value < 1 || value > limit.max) {
      return fmt::format("{} is {}; 1 to {} is allowed", limit.key, value, limit.max);
    }
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    return fmt::format(
        "num_attention_heads is {}; it must be a multiple of num_key_value_heads ({})",
        config.num_heads, config.num_kv_heads);
  }
  if (config.head_dim % kHeadDimMultiple != 0) {
    return fmt::format("head_dim is {}; it must be a multiple of {}", config.head_dim,
                       kHeadDimMultiple);
  }
  if (!(config.rms_norm_eps >= kLeastRmsNormEps && config.rms_norm_eps <= 1.0)) {
    return fmt::format("rms_norm_eps is {}; {} to 1 is allowed", config.rms_norm_eps,
                       kLeastRmsNormEps);
  }
  if (!(config.rope_theta >= 1.0 && config.rope_theta <= kLargestRopeTheta)) {
    return fmt::format("rope_theta is {}; 1 to {} is allowed", config.rope_theta,
                       kLargestRopeTheta);
  }
  if (config.dtype != DType::kFloat32 && config.dtype != DType::kBfloat16) {
    return fmt::format("dtype is {}; float32 or bfloat16 is allowed", dtype_name(config.dtype));
  }
  for (const int32_t id : config.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return fmt::format("eos_token_id is {}; 0 to {} is inside the vocabulary", id,
                         config.vocab_size - 1);
    }
  }
  return std::nullopt;
}

void validate(const ModelConfig& config, const std::string& where) {
  if (const auto problem = find_problem(config))
    throw DataError(fmt::format("{}: {}", where, *problem));
}

ModelConfig read_model_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const json object = read_json_file(path);
  const KeyReader reader(object, path.string());
  check_architecture(reader);
  check_features(reader);

  ModelConfig config{};
  config.hidden_size = reader.required_integer("hidden_size");
  config.num_layers = reader.required_integer("num_hidden_layers");
  config.num_heads = reader.required_integer("num_attention_heads");
  config.num_kv_heads = reader.integer("num_key_value_heads").value_or(config.num_heads);
  config.intermediate_size = reader.required_integer("intermediate_size");
  config.vocab_size = reader.required_integer("vocab_size");
  config.max_position_embeddings = reader.integer("max_position_embeddings").value_or(32768);
  config.rms_norm_eps = reader.number("rms_norm_eps").value_or(1e-6);
  config.rope_theta = read_rope_theta(reader);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  config.dtype = read_dtype(reader);
  config.eos_token_ids = reader.token_ids("eos_token_id");
  const auto head_dim = reader.integer("head_dim");
  config.head_dim =
      head_dim ? *head_dim : derived_head_dim(reader, config.hidden_size, config.num_heads);
  validate(config, path.string());

  const std::filesystem::path generation_path = directory / "generation_config.json";
  if (is_present(generation_path)) {
    const json generation = read_json_file(generation_path);
    for (const int32_t id :
         KeyReader(generation, generation_path.string()).token_ids("eos_token_id")) {
      auto& ids = config.eos_token_ids;
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    validate(config, generation_path.string());
  }
  return config;
}

void write_model_config(const ModelConfig& config, const std::filesystem::path& directory) {
  nlohmann::ordered_json object;
  object["architectures"] = {"Qwen2ForCausalLM"};
  object["attention_dropout"] = 0.0;
  if (config.eos_token_ids.size() == 1) {
    object["eos_token_id"] = config.eos_token_ids.front();
  } else if (!config.eos_token_ids.empty()) {
    object["eos_token_id"] = config.eos_token_ids;
  }
  if (config.head_dim * config.num_heads != config.hidden_size)
    object["head_dim"] = config.head_dim;
  object["hidden_act"] = "silu";
  object["hidden_size"] = config.hidden_size;
  object["intermediate_size"] = config.intermediate_size;
  object["max_position_embeddings"] = config.max_position_embeddings;
  object["model_type"] = "qwen2";
  object["num_attention_heads"] = config.num_heads;
  object["num_hidden_layers"] = config.num_layers;
  object["num_key_value_heads"] = config.num_kv_heads;
  object["rms_norm_eps"] = config.rms_norm_eps;
  object["rope_theta"] = config.rope_theta;
  object["tie_word_embeddings"] = config.tie_word_embeddings;
  object["torch_dtype"] = dtype_name(config.dtype);
  object["use_sliding_window"] = false;
  object["vocab_size"] = config.vocab_size;
  write_file_atomically(directory / "config.json", object.dump(2) + "\n");
}

std::optional<ModelConfig> preset_model_config(const std::string& name) {
  if (name == "qwen2.5-0.5b") return published(896, 24, 14, 2, 4864, 151936, true);
  if (name == "qwen2.5-1.5b") return published(1536, 28, 12, 2, 8960, 151936, true);
  if (name == "qwen2.5-3b") return published(2048, 36, 16, 2, 11008, 151936, true);
  if (name == "qwen2.5-7b") return published(3584, 28, 28, 4, 18944, 152064, false);
  return std::nullopt;
}

std::vector<std::string> preset_names() {
  return {"qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b"};
}

}  // namespace grpo::model
