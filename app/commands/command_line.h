// argv to the command it asks for.
#pragma once

#include <string>
#include <variant>

#include "app/commands/export_command.h"
#include "app/commands/generate_command.h"
#include "app/commands/score_command.h"
#include "app/commands/train_command.h"

namespace grpo::app {

// --help, --version, --print-config-reference: text for stdout, exit code 0.
struct PrintText {
  std::string text;
};

using Command = std::variant<PrintText, TrainOptions, ScoreOptions, GenerateOptions, ExportOptions>;

// Throws ConfigError, one line, for anything it does not know. Does not look at the files named.
Command parse_command_line(int argc, const char* const* argv);

}  // namespace grpo::app
