#include "model/core/errors.h"

namespace grpo {

void throw_check_failure(const char* file, int line, const char* condition,
                         const std::string& message) {
  throw InternalError(fmt::format("{}:{}: check failed: {}{}{}", file, line, condition,
                                  message.empty() ? "" : ": ", message));
}

}  // namespace grpo
