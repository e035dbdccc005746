#include "app/config/unused_keys.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "app/config/config_catalog.h"
#include "model/core/errors.h"
#include "model/files/model_config.h"

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
  const bool is_preset = model::preset_model_config(policy.model_name).has_value();
  const std::string model = fmt::format("policy.model_name is '{}'", printable(policy.model_name));
  const std::string optimizer = fmt::format("policy.optimizer.name is {}", policy.optimizer.name);
  const bool is_sft = config.is_sft();
  const std::string algorithm = fmt::format("algorithm is {}", config.algorithm);
  const bool no_validation = config.data.validation.empty();
  const std::string no_data = "data.validation is empty";
  return {
      {is_sft, "grpo", algorithm},
      {is_sft, "loss_fn", algorithm},
      {is_sft, "env", algorithm},
      {is_sft, "policy.generation", algorithm},
      {is_sft, "data.train.answer_template", algorithm},
      {is_sft, "warm_start.num_steps", algorithm},
      {is_sft, "warm_start.global_batch_size", algorithm},
      {is_sft, "warm_start.lr", algorithm},
      {is_sft, "logger.num_samples_to_print", algorithm},
      {is_sft, "numerics.inject_fault", algorithm},
      {!is_sft, "sft", algorithm},
      {no_validation, "grpo.val_period", no_data},
      {no_validation, "grpo.val_at_start", no_data},
      {no_validation, "grpo.val_at_end", no_data},
      {no_validation, "grpo.max_val_samples", no_data},
      {no_validation, "grpo.val_batch_size", no_data},
      {no_validation, "grpo.val_num_generations_per_prompt", no_data},
      {no_validation, "sft.val_period", no_data},
      {no_validation, "sft.val_at_start", no_data},
      {no_validation, "sft.val_at_end", no_data},
      {no_validation, "sft.val_batches", no_data},
      {no_validation, "sft.val_global_batch_size", no_data},
      {!config.checkpointing.metric_name, "checkpointing.higher_is_better",
       "checkpointing.metric_name is null"},
      {!config.early_stop().is_on(), "grpo.early_stop", "grpo.early_stop.metric is empty"},
      {!config.early_stop().is_on(), "sft.early_stop", "sft.early_stop.metric is empty"},
      // A name that is neither is refused later, with a line of its own.
      {has_weights || is_preset, "policy.model", model + ", only custom reads it"},
      {has_weights, "policy.init_std", model + ", whose weights come from files"},
      {policy.optimizer.name == "sgd", "policy.optimizer.kwargs.betas", optimizer},
      {policy.optimizer.name == "sgd", "policy.optimizer.kwargs.eps", optimizer},
  };
}

// "env.rewards" of the catalog's "env.rewards.[]".
std::string path_of_list(const ConfigKey& key) { return key.path.substr(0, key.path.size() - 3); }

// Calls `visit(first, second, entry)` for each field of both catalogs, with its entry in the file
// (or null). A list of mappings counts as one field.
template <typename Visit>
void for_each_field(const ConfigKey& first, const ConfigKey& second, const ConfigNode* node,
                    const Visit& visit) {
  for (size_t i = 0; i < first.keys.size(); ++i) {
    const ConfigKey& key = first.keys[i];
    const ConfigEntry* entry = node == nullptr ? nullptr : node->find(key.name);
    if (key.kind == ConfigKey::Kind::kSection) {
      for_each_field(key, second.keys[i], entry == nullptr ? nullptr : &entry->value, visit);
    } else {
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
  for_each_field(values, usual, &root,
                 [&](const ConfigKey& value, const ConfigKey& standard, const ConfigEntry* entry) {
                   if (entry == nullptr || value.default_value == standard.default_value) return;
                   for (const Rule& rule : rules) {
                     const std::string path = rule.path;
                     const bool is_named = value.path == path || value.path.starts_with(path + ".");
                     if (!rule.applies || !is_named) continue;
                     const bool is_list = value.kind == ConfigKey::Kind::kSections;
                     const std::string key = is_list ? path_of_list(value) : value.path;
                     throw ConfigError(fmt::format(
                         "{}: {} is {}, but nothing reads it: {}", entry->origin, key,
                         is_list ? "given" : printable(value.default_value), rule.because));
                   }
                 });
}

}  // namespace grpo::app
