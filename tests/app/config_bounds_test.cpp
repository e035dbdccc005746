// Every number of the config has bounds that are checked when it is read: found by walking over the
// catalog, so that a new key without bounds turns a test red.
#include <gtest/gtest.h>

#include <vector>

#include "app/config/config_catalog.h"
#include "rl/config/resolve_config.h"
#include "tests/app/bad_config.h"

namespace grpo::app {
namespace {

using Kind = ConfigKey::Kind;

// One element in each list of mappings, so that elements' keys can be overridden.
const std::string kFile =
    "policy: {model_name: custom}\n"
    "data: {train: {path: d.jsonl}, validation: [{path: v.jsonl}]}\n"
    "env: {rewards: [{}]}\ngates: [{metric: train/loss, max: 1}]\n";

struct NumberKey {
  std::string path;
  Kind kind;
};

void collect(const ConfigKey& section, std::vector<NumberKey>& keys) {
  for (const ConfigKey& key : section.keys) {
    std::string path = key.path;
    if (const size_t element = path.find(".[]"); element != std::string::npos)
      path.replace(element, 3, ".0");
    keys.push_back({path, key.kind});
    collect(key, keys);
  }
}

std::vector<NumberKey> keys_of_kind(std::initializer_list<Kind> kinds) {
  rl::RunConfig defaults;
  std::vector<NumberKey> all;
  collect(make_config_catalog([&](ConfigVisitor& visitor) { defaults.visit(visitor); }), all);
  std::erase_if(all, [&](const NumberKey& key) {
    return std::find(kinds.begin(), kinds.end(), key.kind) == kinds.end();
  });
  return all;
}

// The refusal of one value: place, key, value and what is allowed.
std::string refusal(const std::string& path, const std::string& value) {
  const std::string word = path + "=" + value;
  const std::string message = error_of(kFile, {word});
  if (message.empty()) return "";
  EXPECT_TRUE(message.starts_with("override " + word.substr(0, 50))) << message;
  EXPECT_NE(message.find(": " + path + " "), std::string::npos) << message;
  return message;
}

TEST(ConfigBounds, EveryIntegerHasALeastAndALargestValue) {
  const std::vector<NumberKey> keys = keys_of_kind({Kind::kInteger});
  ASSERT_GT(keys.size(), 30u);
  for (const NumberKey& key : keys) {
    SCOPED_TRACE(key.path);
    EXPECT_NE(refusal(key.path, "-9223372036854775808").find("allowed: "), std::string::npos);
    EXPECT_NE(refusal(key.path, "9223372036854775808").find("allowed: an integer"),
              std::string::npos);
    if (key.path == "grpo.seed" || key.path == "sft.seed") continue;  // any 63 bits
    EXPECT_NE(refusal(key.path, "9223372036854775807").find("allowed: "), std::string::npos);
  }
}

TEST(ConfigBounds, NoNumberIsBeyondFloat32) {
  for (const NumberKey& key : keys_of_kind({Kind::kNumber, Kind::kNumberOrNull})) {
    SCOPED_TRACE(key.path);
    for (const char* value : {"1e-300", "-1e-300", "1e-40", "1e300", "4e38", "5e-324"}) {
      EXPECT_NE(refusal(key.path, value).find("allowed: 0, or a magnitude of 1.2e-38 to 3.4e+38"),
                std::string::npos)
          << value;
    }
    for (const char* value : {".nan", ".inf", "-.inf", "nan", "1e400", "0x1p3"}) {
      EXPECT_NE(refusal(key.path, value).find("allowed: a number"), std::string::npos) << value;
    }
  }
  EXPECT_NE(error_of(kFile, {"policy.optimizer.kwargs.betas=[0.9,1e-300]"}), "");
  EXPECT_NE(error_of(kFile, {"policy.optimizer.kwargs.betas=[0.9,0.99999999999]"})
                .find("allowed: two numbers, each 0 to 0.9999999"),
            std::string::npos);
}

TEST(ConfigBounds, NumbersThatWouldOverflowLaterAreNamedWithTheirRange) {
  const auto allowed = [](const std::string& path, const std::string& value) {
    const std::string message = refusal(path, value);
    const size_t at = message.find("allowed: ");
    return at == std::string::npos ? message : message.substr(at + 9);
  };
  EXPECT_EQ(allowed("policy.generation.temperature", "1e-5"), "0, and 0.0001 to 1000");
  EXPECT_EQ(allowed("policy.generation.temperature", "0.0001"), "");
  EXPECT_EQ(allowed("policy.generation.top_k", "2147483648"), "0 to 2147483647");
  EXPECT_EQ(allowed("policy.optimizer.kwargs.eps", "0"), "1e-30 to 1");
  EXPECT_EQ(allowed("policy.optimizer.kwargs.lr", "1001"), "0 to 1000");
  EXPECT_EQ(allowed("policy.init_std", "11"), "0 to 10");
  EXPECT_EQ(allowed("policy.model.rms_norm_eps", "1e-31"), "1e-30 to 1");
  EXPECT_EQ(allowed("policy.model.rope_theta", "0.5"), "1 to 1000000000000");
  EXPECT_EQ(allowed("parallel.timeout_s", "0.0001"), "0.001 to 1000000");
  EXPECT_EQ(allowed("env.rewards.0.weight", "1e7"), "-1000000 to 1000000");
  EXPECT_EQ(allowed("policy.generation.stop_token_ids", "[2147483648]"),
            "token ids, 0 to 2147483647");
  // The product of the two is bounded, too.
  EXPECT_EQ(
      error_of(kFile, {"grpo.num_prompts_per_step=65536", "grpo.num_generations_per_prompt=17"}),
      "override grpo.num_generations_per_prompt=17: grpo.num_generations_per_prompt is 17; "
      "allowed: 1 to 16");
}

TEST(ConfigBounds, SizesOfAModelAreCheckedWhereTheyStand) {
  EXPECT_EQ(error_of(with("").replace(0, std::string("policy: {model_name: custom}").size(),
                                      "policy: {model_name: custom, model: {hidden_size: 60}}")),
            "c.yaml:1:38: policy.model.hidden_size is 60; allowed: a multiple of 8 x "
            "num_attention_heads, 32");
  EXPECT_NE(refusal("policy.model.num_attention_heads", "0").find("allowed: 1 to 65536"),
            std::string::npos);
  EXPECT_NE(refusal("policy.model.num_key_value_heads", "3")
                .find("allowed: a divisor of num_attention_heads, 4"),
            std::string::npos);
  EXPECT_NE(refusal("policy.model.hidden_size", "1048576")
                .find("allowed: at most 65536 x num_attention_heads, 262144"),
            std::string::npos);
  EXPECT_NE(refusal("policy.model.vocab_size", "4194305").find("allowed: 0 to 4194304"),
            std::string::npos);
  EXPECT_NE(refusal("policy.model.hidden_size", "1048577").find("allowed: 1 to 1048576"),
            std::string::npos);
}

// Each key at its largest value, alone: the rules between keys refuse it or take it, in no time.
TEST(ConfigBounds, LargestValuesEndInNoOverflow) {
  for (const NumberKey& key : keys_of_kind({Kind::kInteger})) {
    SCOPED_TRACE(key.path);
    const std::string message = error_of(kFile, {key.path + "=9223372036854775807"});
    const size_t to = message.rfind(" to ");
    if (to == std::string::npos) continue;
    const std::string largest = message.substr(to + 4);
    try {
      rl::RunConfig config = load(kFile, {key.path + "=" + largest});
      rl::resolve(config, 4);
      EXPECT_NE(rl::batch_arithmetic(config, 4), "");
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
  }
}

}  // namespace
}  // namespace grpo::app
