// key=value words of the command line, written into a parsed config.
#pragma once

#include <string>

#include "app/config/config_catalog.h"
#include "app/config/config_node.h"

namespace grpo::app {

// Sets the value that "a.b.c=value" names, making the sections on the way. Throws ConfigError for a
// word without
// '=', an unknown key (with the nearest), a list element that does not exist, or a whole section.
void apply_override(const std::string& word, const ConfigKey& catalog, ConfigNode& root);

}  // namespace grpo::app
