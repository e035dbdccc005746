// One rule of a config struct's validate().
#pragma once

#include <string>
#include <string_view>

#include "model/core/config_visitor.h"
#include "model/core/errors.h"

namespace grpo {

// Throws ConfigError "<where the key stands>: <message>" unless `ok`. The message says the value
// and what is allowed.
inline void check_config(bool ok, const ConfigVisitor& visitor, std::string_view key,
                         const std::string& message) {
  if (!ok) throw ConfigError(fmt::format("{}: {}", visitor.where(key), message));
}

}  // namespace grpo
