#include "app/config/config_node.h"

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

}  // namespace grpo::app
