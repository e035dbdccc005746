// The config reference of the README: a Markdown table of every key.
#pragma once

#include <string>

namespace grpo::app {

// Key, default, allowed and reason of each field of RunConfig, in the order of the file.
std::string config_reference();

}  // namespace grpo::app
