// Names and values that come from outside, as messages show them.
#pragma once

#include <cstddef>
#include <string>

namespace grpo::app {

// On one line whatever it holds: control characters and bytes that are not UTF-8 are escaped, so
// that no file name splits a message or moves the terminal's cursor.
std::string escaped(const std::string& text);

// The same, cut after about `longest` bytes.
std::string printable(const std::string& text, size_t longest = 60);

}  // namespace grpo::app
