#include "app/unused_keys.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "app/config_catalog.h"
#include "model/core/errors.h"

namespace grpo::app {

namespace {

struct Rule {
  bool applies;
  const char* path;  // of a key, or of a section whose keys are all unused
  std::string because;
};

std::vector<Rule> rules_for(const rl::RunConfig& config) {
  const rl::PolicyConfig& policy = config.policy;
  std::error_code ignored;
  const bool has_weights = std::filesystem::is_directory(policy.model_name, ignored);
  const std::string model = fmt::format("policy.model_name is '{}'", printable(policy.model_name));
  const std::string optimizer = fmt::format("policy.optimizer.name is {}", policy.optimizer.name);
  return {
      {policy.model_name != "custom", "policy.model", model + ", only custom reads it"},
      {has_weights, "policy.init_std", model + ", whose weights come from files"},
      {policy.optimizer.name == "sgd", "policy.optimizer.kwargs.betas", optimizer},
      {policy.optimizer.name == "sgd", "policy.optimizer.kwargs.eps", optimizer},
  };
}

// Calls `visit(first, second, entry)` for each field of both catalogs, with its entry in the file
// (or null).
template <typename Visit>
void for_each_field(const ConfigKey& first, const ConfigKey& second, const ConfigNode* node,
                    const Visit& visit) {
  for (size_t i = 0; i < first.keys.size(); ++i) {
    const ConfigKey& key = first.keys[i];
    const ConfigEntry* entry = node == nullptr ? nullptr : node->find(key.name);
    if (key.kind == ConfigKey::Kind::kSection) {
      for_each_field(key, second.keys[i], entry == nullptr ? nullptr : &entry->value, visit);
    } else if (key.kind != ConfigKey::Kind::kSections) {
      visit(key, second.keys[i], entry);
    }
  }
}

}  // namespace

void refuse_unused_keys(const rl::RunConfig& config, const ConfigNode& root) {
  rl::RunConfig given = config;
  rl::RunConfig defaults;
  // A catalog's default values are those of the struct it is made from.
  const ConfigKey values = make_config_catalog([&](ConfigVisitor& v) { given.visit(v); });
  const ConfigKey usual = make_config_catalog([&](ConfigVisitor& v) { defaults.visit(v); });
  const std::vector<Rule> rules = rules_for(config);
  for_each_field(
      values, usual, &root,
      [&](const ConfigKey& value, const ConfigKey& standard, const ConfigEntry* entry) {
        if (entry == nullptr || value.default_value == standard.default_value) return;
        for (const Rule& rule : rules) {
          const std::string path = rule.path;
          const bool is_named = value.path == path || value.path.starts_with(path + ".");
          if (!rule.applies || !is_named) continue;
          throw ConfigError(fmt::format("{}: {} is {}, but nothing reads it: {}", entry->origin,
                                        value.path, printable(value.default_value), rule.because));
        }
      });
}

}  // namespace grpo::app
