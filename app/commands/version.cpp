#include "app/commands/version.h"

namespace grpo::app {

const char* const kVersion = GRPO_VERSION;

}  // namespace grpo::app
