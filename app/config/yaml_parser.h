// YAML text to ConfigNode. Anchors, aliases, merge keys, tags and several documents are refused: a
// config file says each thing once, where it stands.
#pragma once

#include <filesystem>
#include <string>

#include "app/config/config_node.h"

namespace grpo::app {

// The file's one document. Throws ConfigError, one line, with file:line:column.
ConfigNode parse_yaml_file(const std::filesystem::path& path);

// The same for text; places are "<name>:line:column".
ConfigNode parse_yaml_text(const std::string& text, const std::string& name);

// A value of the command line; every node's origin is `origin`.
ConfigNode parse_yaml_value(const std::string& text, const std::string& origin);

}  // namespace grpo::app
