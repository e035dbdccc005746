#include "app/config/config_overrides.h"

#include <fmt/format.h>

#include "app/config/yaml_parser.h"
#include "app/text/scalar_text.h"
#include "model/core/errors.h"

namespace grpo::app {

namespace {

using Kind = ConfigKey::Kind;

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', start)) {
    parts.push_back(path.substr(start, dot - start));
    start = dot + 1;
  }
  parts.push_back(path.substr(start));
  return parts;
}

// The override's value for a key: text keys take the word as it stands unless it is quoted.
ConfigNode parse_value(const std::string& text, const std::string& origin, const ConfigKey& key) {
  const bool is_text =
      key.kind == Kind::kText || key.kind == Kind::kTextOrNull || key.kind == Kind::kChoice;
  const bool is_quoted = text.starts_with('"') || text.starts_with('\'');
  const bool is_null = text.empty() || text == "null" || text == "~";
  if (!is_text || is_quoted || is_null) return parse_yaml_value(text, origin);
  ConfigNode node;
  node.kind = ConfigNode::Kind::kScalar;
  node.text = text;
  node.quoted = true;
  node.origin = origin;
  return node;
}

// Walks from the root to the value that the path names.
class Cursor {
 public:
  Cursor(std::string origin, const ConfigKey& catalog, ConfigNode& root)
      : origin_(std::move(origin)), catalog_(catalog), key_(&catalog), node_(&root) {}

  const ConfigKey& key() const { return *key_; }
  ConfigNode& node() { return *node_; }
  bool is_section() const { return in_list_element_ || key_->kind == Kind::kSection; }

  void descend(const std::string& part) {
    if (key_->kind == Kind::kSections && !in_list_element_) {
      descend_into_element(part);
    } else if (is_section()) {
      descend_into_key(part);
    } else {
      throw ConfigError(
          fmt::format("{}: {} has no keys; allowed: {}", origin_, walked_, key_->allowed()));
    }
  }

  void fail_whole_section() const {
    throw ConfigError(
        fmt::format("{}: {} is a section; override its keys one by one, like {}.{}=...", origin_,
                    walked_, walked_, key_->keys.front().name));
  }

 private:
  void descend_into_key(const std::string& part) {
    const ConfigKey* found = key_->find(part);
    const std::string path = walked_.empty() ? part : walked_ + "." + part;
    if (found == nullptr) {
      throw ConfigError(fmt::format("{}: {} is not a key; nearest: {}", origin_, printable(path),
                                    key_->nearest_path(part, catalog_)));
    }
    if (node_->kind == ConfigNode::Kind::kNull) node_->kind = ConfigNode::Kind::kMapping;
    if (node_->kind != ConfigNode::Kind::kMapping) {
      throw ConfigError(fmt::format("{}: {} is {}; allowed: a mapping", node_->origin, walked_,
                                    node_->description()));
    }
    ConfigEntry* entry = node_->find(part);
    if (entry == nullptr) {
      node_->entries.push_back({part, origin_, {}});
      entry = &node_->entries.back();
    }
    entry->origin = found->kind == Kind::kSection ? entry->origin : origin_;
    node_ = &entry->value;
    key_ = found;
    in_list_element_ = false;
    walked_ = path;
  }

  void descend_into_element(const std::string& part) {
    const std::optional<int64_t> index = parse_integer(part);
    const auto size = static_cast<int64_t>(node_->items.size());
    if (!index || *index < 0 || *index >= size) {
      throw ConfigError(fmt::format(
          "{}: {} has {} elements, '{}' is none of them; allowed: {}", origin_, walked_, size,
          printable(part),
          size == 0 ? fmt::format("{}=[...]", walked_) : fmt::format("0 to {}", size - 1)));
    }
    node_ = &node_->items[static_cast<size_t>(*index)];
    in_list_element_ = true;
    walked_ += "." + part;
  }

  std::string origin_;
  const ConfigKey& catalog_;
  const ConfigKey* key_;
  ConfigNode* node_;
  bool in_list_element_ = false;
  std::string walked_;
};

}  // namespace

void apply_override(const std::string& word, const ConfigKey& catalog, ConfigNode& root) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw ConfigError(
        fmt::format("'{}' is not an override; allowed: key.path=value", printable(word)));
  }
  const std::string origin = fmt::format("override {}", printable(word));
  Cursor cursor(origin, catalog, root);
  for (const std::string& part : split_path(word.substr(0, equals))) cursor.descend(part);
  if (cursor.is_section()) cursor.fail_whole_section();
  cursor.node() = parse_value(word.substr(equals + 1), origin, cursor.key());
}

}  // namespace grpo::app
