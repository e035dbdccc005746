// A YAML file and key=value overrides to config structs. Everything that is wrong is one
// ConfigError line: place, key, value, what is allowed, nearest key.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/config/config_catalog.h"
#include "app/config/config_node.h"
#include "app/config/config_origins.h"
#include "rl/config/run_config.h"

namespace grpo::app {

// Reads `path` and applies the overrides "a.b.c=value" in order (a later one wins);
// `gates.0.max=1.05` names a list's element. An override's value is YAML, but for text keys it is
// taken as it stands unless it is in quotes. Each struct is validated after its fields are read;
// rules between sections are rl::resolve's.
// `origins`, when given, learns where the keys stand.
rl::RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides,
                              ConfigOrigins* origins = nullptr);

// Fills the fields that `visit` names from `root` and the overrides, and returns both as one tree.
// `catalog` comes from a default config.
ConfigNode read_config(ConfigNode root, const std::vector<std::string>& overrides,
                       const ConfigKey& catalog, const std::function<void(ConfigVisitor&)>& visit);

// `config` with the overrides applied (score and generate have no file).
template <typename Config>
Config config_from_overrides(Config config, const std::vector<std::string>& overrides,
                             ConfigOrigins* origins = nullptr) {
  Config defaults = config;
  ConfigNode root;
  root.kind = ConfigNode::Kind::kMapping;
  root = read_config(std::move(root), overrides,
                     make_config_catalog([&](ConfigVisitor& visitor) { defaults.visit(visitor); }),
                     [&](ConfigVisitor& visitor) { visit_fields(visitor, config); });
  if (origins != nullptr) *origins = config_origins(root);
  return config;
}

}  // namespace grpo::app
