// ConfigNode: a parsed config file as plain data, each value with the place it came from.
#pragma once

#include <string>
#include <vector>

#include "app/text/printable_text.h"

namespace grpo::app {

struct ConfigEntry;

struct ConfigNode {
  enum class Kind { kNull, kScalar, kList, kMapping };

  Kind kind = Kind::kNull;
  std::string text;                  // kScalar
  bool quoted = false;               // kScalar: in quotes or a block, so it can only be text
  std::vector<ConfigNode> items;     // kList
  std::vector<ConfigEntry> entries;  // kMapping, in file order, duplicates included
  std::string origin;                // "configs/a.yaml:12:5" (line:column) or "override a.b=1"

  // The first entry of this name; null when there is none.
  const ConfigEntry* find(const std::string& key) const;
  ConfigEntry* find(const std::string& key);
  // "a list", "a mapping", "null", "'text'": how a message shows it. One line, at most about 60
  // characters.
  std::string description() const;
};

struct ConfigEntry {
  std::string key;
  std::string origin;  // of the key
  ConfigNode value;
};

}  // namespace grpo::app
