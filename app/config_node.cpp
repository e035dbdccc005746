#include "app/config_node.h"

#include <fmt/format.h>

#include <algorithm>

namespace grpo::app {

const ConfigEntry* ConfigNode::find(const std::string& key) const {
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [&](const ConfigEntry& e) { return e.key == key; });
  return entry == entries.end() ? nullptr : &*entry;
}

ConfigEntry* ConfigNode::find(const std::string& key) {
  return const_cast<ConfigEntry*>(static_cast<const ConfigNode*>(this)->find(key));
}

std::string ConfigNode::description() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kList:
      return "a list";
    case Kind::kMapping:
      return "a mapping";
    case Kind::kScalar:
      break;
  }
  return fmt::format("'{}'", printable(text));
}

std::string printable(const std::string& text, size_t longest) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= longest && (static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      return out + "...";
    }
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace grpo::app
