#include "app/text/error_line.h"

#include <fmt/format.h>

#include <cstdio>

#include "app/text/printable_text.h"

namespace grpo::app {

void print_error(const std::string& message) noexcept {
  try {
    const std::string line = fmt::format("grpo_train: error: {}\n", escaped(message));
    std::fwrite(line.data(), 1, line.size(), stderr);  // in one piece: other ranks write too
    std::fflush(stderr);
  } catch (...) {  // no memory for the line: the exit code has to do
  }
}

void print_rank_error(int rank, const std::string& message) noexcept {
  const std::string name = fmt::format("rank {}", rank);
  const bool names_rank = message.starts_with(name + ":") || message.starts_with(name + ",");
  print_error(names_rank ? message : fmt::format("{}: {}", name, message));
}

}  // namespace grpo::app
