#include "app/config/config_origins.h"

namespace grpo::app {

namespace {

void collect(const ConfigNode& node, const std::string& path, ConfigOrigins& origins) {
  const std::string start = path.empty() ? "" : path + ".";
  for (const ConfigEntry& entry : node.entries) {
    origins[start + entry.key] = entry.origin;
    collect(entry.value, start + entry.key, origins);
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    collect(node.items[i], fmt::format("{}{}", start, i), origins);
  }
}

}  // namespace

ConfigOrigins config_origins(const ConfigNode& root) {
  ConfigOrigins origins;
  collect(root, "", origins);
  return origins;
}

}  // namespace grpo::app
