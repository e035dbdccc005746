#include "app/config/yaml_parser.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <vector>

#include "model/core/errors.h"
#include "model/files/input_file.h"
#include "model/tokenizer/unicode_text.h"

namespace grpo::app {

namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;

// Writes a mark as the origin of a node.
using OriginOf = std::function<std::string(const YAML::Mark&)>;

// Lines of the source, to look at what the parser has read past.
class SourceLines {
 public:
  explicit SourceLines(const std::string& text) : text_(text), starts_{0} {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') starts_.push_back(i + 1);
    }
  }

  // yaml-cpp takes the end of the file for the end of a quoted scalar.
  bool has_open_quote(const YAML::Mark& mark) const {
    if (static_cast<size_t>(mark.line) >= starts_.size()) return false;
    size_t i = starts_[static_cast<size_t>(mark.line)] + static_cast<size_t>(mark.column);
    if (i >= text_.size() || (text_[i] != '"' && text_[i] != '\'')) return false;
    const char quote = text_[i];
    for (++i; i < text_.size(); ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        if (quote == '"' || i + 1 >= text_.size() || text_[i + 1] != quote) return false;
        ++i;
      }
    }
    return true;
  }

  bool is_indented_with_tab(const YAML::Mark& mark) const {
    if (mark.line < 0 || static_cast<size_t>(mark.line) >= starts_.size()) return false;
    for (size_t i = starts_[static_cast<size_t>(mark.line)]; i < text_.size(); ++i) {
      if (text_[i] == '\t') return true;
      if (text_[i] != ' ') return false;
    }
    return false;
  }

 private:
  const std::string& text_;
  std::vector<size_t> starts_;
};

// Builds the tree from the parser's events.
class NodeBuilder : public YAML::EventHandler {
 public:
  NodeBuilder(const SourceLines& lines, OriginOf origin_of)
      : lines_(lines), origin_of_(std::move(origin_of)) {}

  ConfigNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    if (expects_key()) fail(mark, "a key is missing before ':'");
    place(mark, ConfigNode::Kind::kNull);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "aliases (*name) are not read; write the value out");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    if (lines_.has_open_quote(mark)) fail(mark, "the quote is not closed");
    if (expects_key()) {
      if (value == "<<" && tag == "?")
        fail(mark, "merge keys (<<) are not read; write the keys out");
      open_.back()->entries.push_back({value, origin_of_(mark), {}});
      key_pending_ = true;
      return;
    }
    ConfigNode& node = place(mark, ConfigNode::Kind::kScalar);
    node.text = value;
    node.quoted = tag == "!";
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, ConfigNode::Kind::kList);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, ConfigNode::Kind::kMapping);
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what) const {
    throw ConfigError(fmt::format("{}: {}", origin_of_(mark), what));
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) fail(mark, "anchors (&name) are not read; write the value out");
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag != "?" && tag != "!" && !tag.empty()) {
      fail(mark, fmt::format("tags ({}) are not read; write the plain value", printable(tag)));
    }
  }

  bool expects_key() const {
    return !open_.empty() && open_.back()->kind == ConfigNode::Kind::kMapping && !key_pending_;
  }

  // Where the next value belongs: the root, the pending key's, or a new list item. Pointers in
  // open_ stay valid because a container grows only while it is the innermost open one.
  ConfigNode& place(const YAML::Mark& mark, ConfigNode::Kind kind) {
    ConfigNode* node = &root_;
    if (!open_.empty()) {
      ConfigNode& parent = *open_.back();
      if (parent.kind == ConfigNode::Kind::kList) {
        node = &parent.items.emplace_back();
      } else {
        node = &parent.entries.back().value;
        key_pending_ = false;
      }
    }
    node->kind = kind;
    node->origin = origin_of_(mark);
    return *node;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            ConfigNode::Kind kind) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    if (expects_key()) {
      fail(mark, "a list or a mapping stands where a key is expected (an open bracket?)");
    }
    open_.push_back(&place(mark, kind));
  }

  const SourceLines& lines_;
  OriginOf origin_of_;
  ConfigNode root_;
  std::vector<ConfigNode*> open_;
  bool key_pending_ = false;
};

ConfigNode parse(const std::string& text, const OriginOf& origin_of) {
  const SourceLines lines(text);
  std::istringstream input(text);
  try {
    YAML::Parser parser(input);
    NodeBuilder builder(lines, origin_of);
    if (!parser.HandleNextDocument(builder)) return {};
    ConfigNode root = builder.take_root();
    NodeBuilder rest(lines, origin_of);
    if (parser.HandleNextDocument(rest)) {
      throw ConfigError(fmt::format("{}: a second YAML document starts here; allowed: one document",
                                    rest.take_root().origin));
    }
    return root;
  } catch (const YAML::Exception& error) {
    if (lines.is_indented_with_tab(error.mark)) {
      throw ConfigError(fmt::format("{}: the line is indented with a tab; allowed: spaces",
                                    origin_of(error.mark)));
    }
    throw ConfigError(fmt::format("{}: not valid YAML: {}", origin_of(error.mark), error.msg));
  }
}

std::string read_file(const std::filesystem::path& path) {
  if (const auto problem = model::input_problem(path)) {
    throw ConfigError(fmt::format("{}: {}", path.string(), *problem));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::vector<char> block(size_t{64} << 10);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxFileBytes) {
      throw ConfigError(fmt::format("{}: is larger than {} MiB; allowed: a YAML config file",
                                    path.string(), kMaxFileBytes >> 20));
    }
  }
  if (!file.is_open() || file.bad()) {
    throw ConfigError(fmt::format("{}: cannot be read: {}", path.string(),
                                  errno != 0 ? std::strerror(errno) : "input error"));
  }
  return text;
}

}  // namespace

ConfigNode parse_yaml_text(const std::string& text, const std::string& name) {
  const bool has_byte_order_mark = text.starts_with("\xEF\xBB\xBF");
  const std::string body = has_byte_order_mark ? text.substr(3) : text;
  try {
    model::check_utf8(body);
  } catch (const DataError& error) {
    throw ConfigError(fmt::format("{}: {}; allowed: YAML text in UTF-8", name, error.what()));
  }
  if (body.find('\0') != std::string::npos) {
    throw ConfigError(fmt::format("{}: holds a zero byte; allowed: YAML text in UTF-8", name));
  }
  ConfigNode root = parse(body, [&](const YAML::Mark& mark) {
    return mark.is_null() ? name : fmt::format("{}:{}:{}", name, mark.line + 1, mark.column + 1);
  });
  if (root.origin.empty()) {
    throw ConfigError(fmt::format("{}: is empty; allowed: a mapping of config keys", name));
  }
  return root;
}

ConfigNode parse_yaml_file(const std::filesystem::path& path) {
  return parse_yaml_text(read_file(path), path.string());
}

ConfigNode parse_yaml_value(const std::string& text, const std::string& origin) {
  ConfigNode root = parse(text, [&](const YAML::Mark&) { return origin; });
  root.origin = origin;
  return root;
}

}  // namespace grpo::app
