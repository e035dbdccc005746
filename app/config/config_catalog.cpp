#include "app/config/config_catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "app/config/config_writer.h"
#include "model/core/errors.h"
#include "model/core/nearest_name.h"

namespace grpo::app {

namespace {

using Kind = ConfigKey::Kind;

class CatalogVisitor : public ConfigVisitor {
 public:
  explicit CatalogVisitor(ConfigKey& section) : section_(section) {}

  void field(std::string_view key, bool& value, std::string_view reason) override {
    add(key, Kind::kBool, yaml_of(value), reason);
  }
  void field(std::string_view key, int64_t& value, std::string_view reason) override {
    add(key, Kind::kInteger, yaml_of(value), reason);
  }
  void field(std::string_view key, double& value, std::string_view reason) override {
    add(key, Kind::kNumber, yaml_of(value), reason);
  }
  void field(std::string_view key, std::string& value, std::string_view reason) override {
    add(key, Kind::kText, yaml_of(value), reason);
  }
  void field(std::string_view key, std::optional<double>& value, std::string_view reason) override {
    add(key, Kind::kNumberOrNull, yaml_of(value), reason);
  }
  void field(std::string_view key, std::optional<std::string>& value,
             std::string_view reason) override {
    add(key, Kind::kTextOrNull, yaml_of(value), reason);
  }
  void field(std::string_view key, std::vector<int64_t>& value, std::string_view reason) override {
    add(key, Kind::kIntegers, yaml_of(value), reason);
  }
  void field(std::string_view key, std::vector<double>& value, std::string_view reason) override {
    add(key, Kind::kNumbers, yaml_of(value), reason);
  }
  void choice(std::string_view key, std::string& value, const std::vector<std::string>& allowed,
              std::string_view reason) override {
    add(key, Kind::kChoice, yaml_of(value), reason).choices = allowed;
  }
  void section(std::string_view key, std::string_view reason,
               const std::function<void(ConfigVisitor&)>& body) override {
    CatalogVisitor inner(add(key, Kind::kSection, "", reason));
    body(inner);
  }
  void list(std::string_view key, std::string_view reason,
            const std::function<size_t(int64_t)>& resize,
            const std::function<void(size_t, ConfigVisitor&)>& body) override {
    ConfigKey& added = add(key, Kind::kSections, resize(-1) == 0 ? "[]" : "", reason);
    added.path += ".[]";
    resize(0);
    resize(1);  // a default-constructed element
    CatalogVisitor inner(added);
    body(0, inner);
  }
  std::string where(std::string_view key) const override {
    return fmt::format("default of {}{}{}", section_.path, section_.path.empty() ? "" : ".", key);
  }
  bool is_reading() const override { return false; }

 private:
  ConfigKey& add(std::string_view key, Kind kind, std::string default_value,
                 std::string_view reason) {
    const std::string name(key);
    CHECK(section_.find(name) == nullptr, "{} is declared twice", where(key));
    ConfigKey added;
    added.name = name;
    added.path = section_.path.empty() ? name : section_.path + "." + name;
    added.kind = kind;
    added.default_value = std::move(default_value);
    added.reason = std::string(reason);
    return section_.keys.emplace_back(std::move(added));
  }

  ConfigKey& section_;
};

void collect_paths(const ConfigKey& key, const std::string& name, std::vector<std::string>& paths) {
  for (const ConfigKey& inner : key.keys) {
    if (inner.name == name) paths.push_back(inner.path);
    collect_paths(inner, name, paths);
  }
}

}  // namespace

const ConfigKey* ConfigKey::find(const std::string& wanted) const {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& k) { return k.name == wanted; });
  return found == keys.end() ? nullptr : &*found;
}

std::string ConfigKey::allowed() const {
  switch (kind) {
    case Kind::kBool:
      return "true or false";
    case Kind::kInteger:
      return "an integer";
    case Kind::kNumber:
      return "a number";
    case Kind::kText:
      return "text";
    case Kind::kNumberOrNull:
      return "a number or null";
    case Kind::kTextOrNull:
      return "text or null";
    case Kind::kIntegers:
      return "a list of integers";
    case Kind::kNumbers:
      return "a list of numbers";
    case Kind::kChoice:
      return fmt::format("one of {}", fmt::join(choices, ", "));
    case Kind::kSection:
      return "a mapping";
    case Kind::kSections:
      return "a list of mappings";
  }
  return "";
}

std::string ConfigKey::nearest_path(const std::string& misspelt, const ConfigKey& root) const {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const ConfigKey& k : keys) names.push_back(k.name);
  const std::string sibling = nearest_name(misspelt, names);
  const std::string sibling_path = path.empty() ? sibling : path + "." + sibling;
  if (edit_distance(misspelt, sibling) * 3 <= std::max<size_t>(misspelt.size(), 3))
    return sibling_path;
  std::vector<std::string> elsewhere;
  collect_paths(root, misspelt, elsewhere);
  return elsewhere.empty() ? sibling_path : elsewhere.front();
}

ConfigKey make_config_catalog(const std::function<void(ConfigVisitor&)>& visit) {
  ConfigKey root;
  CatalogVisitor visitor(root);
  visit(visitor);
  return root;
}

}  // namespace grpo::app
