// The program's version, for --version.
#pragma once

namespace grpo::app {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace grpo::app
