// The line that tells the user what ended the program.
#pragma once

#include <string>

namespace grpo::app {

// "grpo_train: error: ..." on stderr. A console that cannot be written changes nothing.
void print_error(const std::string& message) noexcept;

// The same with "rank N: " before a message that does not name the rank itself.
void print_rank_error(int rank, const std::string& message) noexcept;

}  // namespace grpo::app
