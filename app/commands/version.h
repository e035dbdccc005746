// The program's version, for --version.
#pragma once

namespace grpo::app {

extern const char* const kVersion;  // as the build's project() states it: "1.2.3"

}  // namespace grpo::app
