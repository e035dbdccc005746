// How a plain config struct describes its fields once, for reading, writing and documenting alike.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace grpo {

// A struct offers `void visit(ConfigVisitor&)`, which names each field in order with a one-line
// reason, and, where some values cannot be, `void validate(const ConfigVisitor&) const`, which
// throws ConfigError for them; it runs when reading, right after the struct's fields. Key names are
// the YAML keys. Implemented in app/.
class ConfigVisitor {
 public:
  virtual ~ConfigVisitor() = default;

  virtual void field(std::string_view key, bool& value, std::string_view reason) = 0;
  virtual void field(std::string_view key, int64_t& value, std::string_view reason) = 0;
  virtual void field(std::string_view key, double& value, std::string_view reason) = 0;
  virtual void field(std::string_view key, std::string& value, std::string_view reason) = 0;
  // null in YAML is nullopt.
  virtual void field(std::string_view key, std::optional<double>& value,
                     std::string_view reason) = 0;
  virtual void field(std::string_view key, std::optional<std::string>& value,
                     std::string_view reason) = 0;
  virtual void field(std::string_view key, std::vector<int64_t>& value,
                     std::string_view reason) = 0;
  virtual void field(std::string_view key, std::vector<double>& value, std::string_view reason) = 0;
  // One of a few words.
  virtual void choice(std::string_view key, std::string& value,
                      const std::vector<std::string>& allowed, std::string_view reason) = 0;
  // A nested mapping; `body` visits its fields.
  virtual void section(std::string_view key, std::string_view reason,
                       const std::function<void(ConfigVisitor&)>& body) = 0;
  // A list of mappings. `resize` sets the number of elements when reading and returns it otherwise
  // (argument -1); `body` visits element i.
  virtual void list(std::string_view key, std::string_view reason,
                    const std::function<size_t(int64_t)>& resize,
                    const std::function<void(size_t, ConfigVisitor&)>& body) = 0;

  // Where a key of the section being visited stands, for validate(): "configs/a.yaml:12:5:
  // grpo.seed", "override grpo.seed=1: grpo.seed" or "default of grpo.seed".
  virtual std::string where(std::string_view key) const = 0;

  // Fields get their values from a source, so that they have to be validated; false for writing.
  virtual bool is_reading() const = 0;
};

// Visits a struct's fields in the current section.
template <typename Config>
void visit_fields(ConfigVisitor& visitor, Config& config) {
  config.visit(visitor);
  if constexpr (requires { config.validate(visitor); }) {
    if (visitor.is_reading()) config.validate(visitor);
  }
}

// Visits a nested config struct.
template <typename Config>
void visit_section(ConfigVisitor& visitor, std::string_view key, std::string_view reason,
                   Config& config) {
  visitor.section(key, reason, [&](ConfigVisitor& inner) { visit_fields(inner, config); });
}

// Visits a list of config structs.
template <typename Config>
void visit_list(ConfigVisitor& visitor, std::string_view key, std::string_view reason,
                std::vector<Config>& configs) {
  visitor.list(
      key, reason,
      [&](int64_t count) {
        if (count >= 0) configs.resize(static_cast<size_t>(count));
        return configs.size();
      },
      [&](size_t index, ConfigVisitor& inner) { visit_fields(inner, configs[index]); });
}

}  // namespace grpo
