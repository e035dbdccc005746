#include "app/config/config_origins.h"

namespace grpo::app {

namespace {

void collect(const ConfigNode& node, const std::string& path, ConfigOrigins& places) {
  const std::string start = path.empty() ? "" : path + ".";
  for (const ConfigEntry& entry : node.entries) {
    places[start + entry.key] = entry.origin;
    collect(entry.value, start + entry.key, places);
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    collect(node.items[i], fmt::format("{}{}", start, i), places);
  }
}

}  // namespace

ConfigOrigins config_origins(const ConfigNode& root) {
  ConfigOrigins places;
  collect(root, "", places);
  return places;
}

}  // namespace grpo::app
