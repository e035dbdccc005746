// Config structs to YAML that reads back to an equal config.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/core/config_visitor.h"

namespace grpo::app {

// Field values as flow YAML.
std::string yaml_of(bool value);
std::string yaml_of(int64_t value);
std::string yaml_of(double value);
std::string yaml_of(const std::string& value);
std::string yaml_of(const std::optional<double>& value);
std::string yaml_of(const std::optional<std::string>& value);
std::string yaml_of(const std::vector<int64_t>& values);
std::string yaml_of(const std::vector<double>& values);

// Every field, in the order of visit(); two spaces a level.
std::string write_yaml(const std::function<void(ConfigVisitor&)>& visit);

template <typename Config>
std::string config_to_yaml(Config config) {
  return write_yaml([&](ConfigVisitor& visitor) { config.visit(visitor); });
}

}  // namespace grpo::app
