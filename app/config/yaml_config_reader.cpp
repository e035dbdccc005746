#include "app/config/yaml_config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "app/config/config_overrides.h"
#include "app/config/unused_keys.h"
#include "app/config/yaml_parser.h"
#include "app/text/scalar_text.h"
#include "model/core/errors.h"
#include "model/tokenizer/unicode_text.h"

namespace grpo::app {

namespace {

std::string join_path(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

// Unknown and duplicate keys, anywhere in the tree: before any value is looked at.
void check_keys(const ConfigNode& node, const std::string& path, const ConfigKey& key,
                const ConfigKey& root) {
  if (key.kind == ConfigKey::Kind::kSections && node.kind == ConfigNode::Kind::kList) {
    ConfigKey element = key;
    element.kind = ConfigKey::Kind::kSection;
    for (size_t i = 0; i < node.items.size(); ++i) {
      check_keys(node.items[i], fmt::format("{}.{}", path, i), element, root);
    }
  }
  if (key.kind != ConfigKey::Kind::kSection || node.kind != ConfigNode::Kind::kMapping) return;
  for (const ConfigEntry& entry : node.entries) {
    const std::string entry_path = join_path(path, entry.key);
    const ConfigKey* known = key.find(entry.key);
    if (known == nullptr) {
      throw ConfigError(fmt::format("{}: {} is not a key; nearest: {}", entry.origin,
                                    printable(entry_path), key.nearest_path(entry.key, root)));
    }
    if (const ConfigEntry* first = node.find(entry.key); first != &entry) {
      throw ConfigError(fmt::format("{}: {} is given twice; it already stands at {}", entry.origin,
                                    entry_path, first->origin));
    }
    check_keys(entry.value, entry_path, *known, root);
  }
}

// Gives the fields of one section their values.
class SectionReader : public ConfigVisitor {
 public:
  // `node` is null when the section is not in the file.
  SectionReader(const ConfigNode* node, std::string path) : node_(node), path_(std::move(path)) {}

  void field(std::string_view key, bool& value, std::string_view) override {
    const ConfigNode* node = find(key);
    if (node == nullptr) return;
    const bool is_plain = node->kind == ConfigNode::Kind::kScalar && !node->quoted;
    if (!is_plain || (node->text != "true" && node->text != "false")) {
      fail(key, *node, "true or false");
    }
    value = node->text == "true";
  }
  void field(std::string_view key, int64_t& value, std::string_view) override {
    if (const ConfigNode* node = find(key)) value = integer(key, *node, "an integer");
  }
  void field(std::string_view key, double& value, std::string_view) override {
    if (const ConfigNode* node = find(key))
      value = number(key, *node, "a number, like 0.5 or 1e-6");
  }
  void field(std::string_view key, std::string& value, std::string_view) override {
    if (const ConfigNode* node = find(key)) value = text(key, *node, "text ('' for none)");
  }
  void field(std::string_view key, std::optional<double>& value, std::string_view) override {
    const ConfigNode* node = find(key);
    if (node == nullptr) return;
    value = is_null(*node) ? std::nullopt : std::optional(number(key, *node, "a number or null"));
  }
  void field(std::string_view key, std::optional<std::string>& value, std::string_view) override {
    const ConfigNode* node = find(key);
    if (node == nullptr) return;
    value = is_null(*node) ? std::nullopt : std::optional(text(key, *node, "text or null"));
  }
  void field(std::string_view key, std::vector<int64_t>& value, std::string_view) override {
    const char* allowed = "a list of integers, like [1, 2]";
    read_list(key, value, allowed, [&](const ConfigNode& n) { return integer(key, n, allowed); });
  }
  void field(std::string_view key, std::vector<double>& value, std::string_view) override {
    const char* allowed = "a list of numbers, like [0.9, 0.999]";
    read_list(key, value, allowed, [&](const ConfigNode& n) { return number(key, n, allowed); });
  }
  void choice(std::string_view key, std::string& value, const std::vector<std::string>& allowed,
              std::string_view) override {
    const ConfigNode* node = find(key);
    if (node == nullptr) return;
    const bool is_word = node->kind == ConfigNode::Kind::kScalar;
    if (!is_word || std::find(allowed.begin(), allowed.end(), node->text) == allowed.end()) {
      std::string words;
      for (const std::string& word : allowed) words += (words.empty() ? "" : ", ") + word;
      fail(key, *node, words);
    }
    value = node->text;
  }

  void section(std::string_view key, std::string_view,
               const std::function<void(ConfigVisitor&)>& body) override {
    const ConfigNode* node = find(key);
    if (node != nullptr && node->kind != ConfigNode::Kind::kMapping) {
      fail(key, *node, "a mapping of its keys");
    }
    SectionReader inner(node, join_path(path_, key));
    body(inner);
  }
  void list(std::string_view key, std::string_view, const std::function<size_t(int64_t)>& resize,
            const std::function<void(size_t, ConfigVisitor&)>& body) override {
    const ConfigNode* node = find(key);
    if (node == nullptr) return;
    if (node->kind != ConfigNode::Kind::kList) fail(key, *node, "a list of mappings ([] for none)");
    resize(0);  // the file's elements start from their defaults
    resize(static_cast<int64_t>(node->items.size()));
    for (size_t i = 0; i < node->items.size(); ++i) {
      const ConfigNode& item = node->items[i];
      const std::string path = fmt::format("{}.{}", join_path(path_, key), i);
      if (item.kind != ConfigNode::Kind::kMapping) {
        throw ConfigError(fmt::format("{}: {} is {}; allowed: a mapping of its keys", item.origin,
                                      path, item.description()));
      }
      SectionReader inner(&item, path);
      body(i, inner);
    }
  }

  std::string where(std::string_view key) const override {
    const std::string path = join_path(path_, key);
    const ConfigEntry* entry = node_ == nullptr ? nullptr : node_->find(std::string(key));
    if (entry == nullptr) return fmt::format("default of {}", path);
    return fmt::format("{}: {}", entry->origin, path);
  }
  bool is_reading() const override { return true; }

 private:
  const ConfigNode* find(std::string_view key) const {
    const ConfigEntry* entry = node_ == nullptr ? nullptr : node_->find(std::string(key));
    return entry == nullptr ? nullptr : &entry->value;
  }

  [[noreturn]] void fail(std::string_view key, const ConfigNode& node,
                         const std::string& allowed) const {
    const char* in_quotes = node.quoted && node.kind == ConfigNode::Kind::kScalar &&
                                    !node.origin.starts_with("override")
                                ? " in quotes"
                                : "";
    throw ConfigError(
        fmt::format("{} is {}{}; allowed: {}", where(key), node.description(), in_quotes, allowed));
  }

  static bool is_null(const ConfigNode& node) { return node.kind == ConfigNode::Kind::kNull; }

  int64_t integer(std::string_view key, const ConfigNode& node, const std::string& allowed) const {
    if (node.kind != ConfigNode::Kind::kScalar || node.quoted) fail(key, node, allowed);
    const std::optional<int64_t> value = parse_integer(node.text);
    if (!value) fail(key, node, allowed);
    return *value;
  }

  double number(std::string_view key, const ConfigNode& node, const std::string& allowed) const {
    if (node.kind != ConfigNode::Kind::kScalar || node.quoted) fail(key, node, allowed);
    const std::optional<double> value = parse_number(node.text);
    if (!value) fail(key, node, allowed);
    // Kernels take numbers as float32; beyond its normal range they would see 0 or infinity.
    constexpr double kLeast = std::numeric_limits<float>::min();
    constexpr double kMost = std::numeric_limits<float>::max();
    const double magnitude = std::abs(*value);
    if (magnitude != 0 && !(magnitude >= kLeast && magnitude <= kMost)) {
      fail(key, node, fmt::format("0, or a magnitude of {:.2g} to {:.2g}", kLeast, kMost));
    }
    return *value;
  }

  std::string text(std::string_view key, const ConfigNode& node, const std::string& allowed) const {
    if (node.kind != ConfigNode::Kind::kScalar) fail(key, node, allowed);
    // The system's names of files end at a zero byte.
    if (node.text.find('\0') != std::string::npos) fail(key, node, "text without a zero byte");
    try {
      model::check_utf8(node.text);  // of a word of the command line, or an escaped half of a pair
    } catch (const DataError&) {
      fail(key, node, "text in UTF-8, which the saved config is written in");
    }
    return node.text;
  }

  template <typename Value, typename Read>
  void read_list(std::string_view key, std::vector<Value>& values, const std::string& allowed,
                 const Read& read) const {
    const ConfigNode* node = find(key);
    if (node == nullptr) return;
    if (node->kind != ConfigNode::Kind::kList) fail(key, *node, allowed);
    values.clear();
    for (const ConfigNode& item : node->items) values.push_back(read(item));
  }

  const ConfigNode* node_;
  std::string path_;
};

}  // namespace

ConfigNode read_config(ConfigNode root, const std::vector<std::string>& overrides,
                       const ConfigKey& catalog, const std::function<void(ConfigVisitor&)>& visit) {
  if (root.kind != ConfigNode::Kind::kMapping) {
    throw ConfigError(fmt::format("{}: the config is {}; allowed: a mapping of its sections",
                                  root.origin, root.description()));
  }
  check_keys(root, "", catalog, catalog);
  for (const std::string& word : overrides) apply_override(word, catalog, root);
  check_keys(root, "", catalog, catalog);  // an override may bring a list of mappings
  SectionReader reader(&root, "");
  visit(reader);
  return root;
}

rl::RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides,
                              ConfigOrigins* origins) {
  rl::RunConfig defaults;
  rl::RunConfig config;
  const ConfigNode root =
      read_config(parse_yaml_file(path), overrides,
                  make_config_catalog([&](ConfigVisitor& visitor) { defaults.visit(visitor); }),
                  [&](ConfigVisitor& visitor) { visit_fields(visitor, config); });
  refuse_unused_keys(config, root);
  if (origins != nullptr) *origins = config_origins(root);
  return config;
}

}  // namespace grpo::app
