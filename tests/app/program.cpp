#include "tests/app/program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "tests/app/scratch_folder.h"

namespace grpo::testing {

namespace {

constexpr unsigned kMostSeconds = 60;

[[noreturn]] void become_program(const std::vector<std::string>& words, const std::string& out,
                                 const std::string& err) {
  const int in_file = open("/dev/null", O_RDONLY);
  const int out_file = open(out.c_str(), O_WRONLY | O_CREAT, 0600);
  const int err_file = open(err.c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(in_file, STDIN_FILENO);
  dup2(out_file, STDOUT_FILENO);
  dup2(err_file, STDERR_FILENO);
  std::vector<char*> arguments{const_cast<char*>("grpo_train")};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  alarm(kMostSeconds);
  execv(GRPO_TRAIN_PROGRAM, arguments.data());
  _exit(127);
}

}  // namespace

ProgramRun run_program(const std::vector<std::string>& words, const std::string& out_path) {
  const ScratchFolder folder;
  const std::string out = out_path.empty() ? folder.path() + "/out" : out_path;
  const std::string err = folder.path() + "/err";
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) become_program(words, out, err);
  int status = 0;
  waitpid(child, &status, 0);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = out_path.empty() ? folder.read("out") : "",
          .err = folder.read("err"),
          .seconds = elapsed.count()};
}

}  // namespace grpo::testing
