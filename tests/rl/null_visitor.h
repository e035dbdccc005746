// A ConfigVisitor that leaves fields alone and knows the keys it was shown; for tests of visit()
// and validate().
#pragma once

#include <string>
#include <vector>

#include "model/core/config_visitor.h"
#include "model/core/errors.h"

namespace grpo::rl {

class NullVisitor : public ConfigVisitor {
 public:
  void field(std::string_view key, bool&, std::string_view) override { add(key); }
  void field(std::string_view key, int64_t&, std::string_view) override { add(key); }
  void field(std::string_view key, double&, std::string_view) override { add(key); }
  void field(std::string_view key, std::string&, std::string_view) override { add(key); }
  void field(std::string_view key, std::optional<double>&, std::string_view) override { add(key); }
  void field(std::string_view key, std::optional<std::string>&, std::string_view) override {
    add(key);
  }
  void field(std::string_view key, std::vector<int64_t>&, std::string_view) override { add(key); }
  void field(std::string_view key, std::vector<double>&, std::string_view) override { add(key); }
  void choice(std::string_view key, std::string&, const std::vector<std::string>&,
              std::string_view) override {
    add(key);
  }
  void section(std::string_view key, std::string_view,
               const std::function<void(ConfigVisitor&)>&) override {
    add(key);
  }
  void list(std::string_view key, std::string_view, const std::function<size_t(int64_t)>&,
            const std::function<void(size_t, ConfigVisitor&)>&) override {
    add(key);
  }
  std::string where(std::string_view key) const override {
    return "test.yaml:1:1: " + std::string(key);
  }
  bool is_reading() const override { return true; }

  std::vector<std::string> keys;

 private:
  void add(std::string_view key) { keys.emplace_back(key); }
};

// The message of the ConfigError that validate() throws, "" when it throws none.
template <typename Config>
std::string validation_error(const Config& config) {
  try {
    config.validate(NullVisitor());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace grpo::rl
