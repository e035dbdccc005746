#include "tests/golden/json_config_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/core/errors.h"

namespace grpo::golden {

const nlohmann::json* JsonConfigReader::find(std::string_view key) {
  known_.emplace_back(key);
  const auto found = object_.find(std::string(key));
  return found == object_.end() ? nullptr : &*found;
}

void JsonConfigReader::field(std::string_view key, bool& value, std::string_view) {
  if (const auto* json = find(key)) value = json->get<bool>();
}

void JsonConfigReader::field(std::string_view key, int64_t& value, std::string_view) {
  if (const auto* json = find(key)) value = json->get<int64_t>();
}

void JsonConfigReader::field(std::string_view key, double& value, std::string_view) {
  if (const auto* json = find(key)) value = json->get<double>();
}

void JsonConfigReader::field(std::string_view key, std::string& value, std::string_view) {
  if (const auto* json = find(key)) value = json->get<std::string>();
}

void JsonConfigReader::field(std::string_view key, std::optional<double>& value, std::string_view) {
  if (const auto* json = find(key))
    value = json->is_null() ? std::nullopt : std::optional(json->get<double>());
}

void JsonConfigReader::field(std::string_view key, std::optional<std::string>& value,
                             std::string_view) {
  if (const auto* json = find(key))
    value = json->is_null() ? std::nullopt : std::optional(json->get<std::string>());
}

void JsonConfigReader::field(std::string_view key, std::vector<int64_t>& value, std::string_view) {
  if (const auto* json = find(key)) value = json->get<std::vector<int64_t>>();
}

void JsonConfigReader::field(std::string_view key, std::vector<double>& value, std::string_view) {
  if (const auto* json = find(key)) value = json->get<std::vector<double>>();
}

void JsonConfigReader::choice(std::string_view key, std::string& value,
                              const std::vector<std::string>& allowed, std::string_view) {
  const auto* json = find(key);
  if (json == nullptr) return;
  value = json->get<std::string>();
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end() && !bad_choice_)
    bad_choice_ = std::string(key) + "=" + value;
}

void JsonConfigReader::section(std::string_view key, std::string_view,
                               const std::function<void(ConfigVisitor&)>&) {
  throw InternalError("a golden config has no sections: " + std::string(key));
}

void JsonConfigReader::list(std::string_view key, std::string_view,
                            const std::function<size_t(int64_t)>&,
                            const std::function<void(size_t, ConfigVisitor&)>&) {
  throw InternalError("a golden config has no lists: " + std::string(key));
}

std::string JsonConfigReader::where(std::string_view key) const { return std::string(key); }

std::optional<std::string> JsonConfigReader::first_unknown() const {
  for (const auto& [key, value] : object_.items())
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) return key;
  return bad_choice_;
}

}  // namespace grpo::golden
