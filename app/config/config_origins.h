// Where the keys of a config were given, for errors that are found after reading.
#pragma once

#include <map>
#include <string>

#include "app/config/config_node.h"
#include "model/core/config_key_error.h"

namespace grpo::app {

// "policy.generation.top_k" -> "c.yaml:12:5" or "override policy.generation.top_k=5"; keys that
// keep their default are absent. Elements of lists count: "gates.0.max".
using ConfigOrigins = std::map<std::string, std::string>;

ConfigOrigins config_origins(const ConfigNode& root);

// Runs `body`; a ConfigKeyError leaves it as a ConfigError that starts with the key's place.
template <typename Body>
auto with_origins(const ConfigOrigins& origins, const Body& body) {
  try {
    return body();
  } catch (const ConfigKeyError& error) {
    const auto place = origins.find(error.key());
    const bool is_given = place != origins.end();
    throw ConfigError(fmt::format("{}: {}", is_given ? place->second : "default", error.what()));
  }
}

}  // namespace grpo::app
