// grpo_train: the only place where errors become exit codes.
#include <signal.h>

#include "app/commands/command_line.h"
#include "app/launch/launch.h"
#include "app/text/error_line.h"
#include "app/text/text_file.h"
#include "model/core/errors.h"

namespace grpo::app {

namespace {

struct Run {
  int operator()(const PrintText& print) const {
    write_standard_output(print.text);
    return static_cast<int>(ExitCode::kDone);
  }
  int operator()(const TrainOptions& options) const { return run_train(options); }
  int operator()(const ScoreOptions& options) const { return run_score(options); }
  int operator()(const GenerateOptions& options) const { return run_generate(options); }
  int operator()(const ExportOptions& options) const { return run_export(options); }
};

int run(int argc, char** argv) {
  try {
    return std::visit(Run{}, parse_command_line(argc, argv));
  } catch (const ConfigError& error) {
    if (speaks_for_launch()) print_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const DataError& error) {
    if (speaks_for_launch()) print_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const Error& error) {
    print_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    print_error("out of host memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return static_cast<int>(ExitCode::kOther);
}

}  // namespace

}  // namespace grpo::app

int main(int argc, char** argv) {
  signal(SIGPIPE,
         SIG_IGN);  // a closed console or connection is an error to handle, not a silent end
  return grpo::app::run(argc, argv);
}
