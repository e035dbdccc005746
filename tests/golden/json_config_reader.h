// Fills a config struct from a flat JSON object, through the struct's own visit().
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "model/core/config_visitor.h"

namespace grpo::golden {

// Visits one JSON object. Fields without a key keep their default; null is nullopt.
class JsonConfigReader : public ConfigVisitor {
 public:
  explicit JsonConfigReader(const nlohmann::json& object) : object_(object) {}

  void field(std::string_view key, bool& value, std::string_view reason) override;
  void field(std::string_view key, int64_t& value, std::string_view reason) override;
  void field(std::string_view key, double& value, std::string_view reason) override;
  void field(std::string_view key, std::string& value, std::string_view reason) override;
  void field(std::string_view key, std::optional<double>& value, std::string_view reason) override;
  void field(std::string_view key, std::optional<std::string>& value,
             std::string_view reason) override;
  void field(std::string_view key, std::vector<int64_t>& value, std::string_view reason) override;
  void field(std::string_view key, std::vector<double>& value, std::string_view reason) override;
  void choice(std::string_view key, std::string& value, const std::vector<std::string>& allowed,
              std::string_view reason) override;
  void section(std::string_view key, std::string_view reason,
               const std::function<void(ConfigVisitor&)>& body) override;
  void list(std::string_view key, std::string_view reason,
            const std::function<size_t(int64_t)>& resize,
            const std::function<void(size_t, ConfigVisitor&)>& body) override;
  std::string where(std::string_view key) const override;
  bool is_reading() const override { return true; }

  // A key of the object that no field has asked for, or a value outside a choice ("key=value").
  std::optional<std::string> first_unknown() const;

 private:
  const nlohmann::json* find(std::string_view key);

  const nlohmann::json& object_;
  std::vector<std::string> known_;
  std::optional<std::string> bad_choice_;
};

// Reads `object` into `config`; returns the first key or choice that the config does not know.
template <typename Config>
std::optional<std::string> read_json_config(const nlohmann::json& object, Config& config) {
  JsonConfigReader reader(object);
  config.visit(reader);
  return reader.first_unknown();
}

}  // namespace grpo::golden
