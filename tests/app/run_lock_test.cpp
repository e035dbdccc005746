#include "app/output/run_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/core/errors.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

using testing::ScratchFolder;

std::string refusal(const std::string& folder) {
  try {
    const RunLock lock("logger.log_dir", folder);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "taken";
}

TEST(RunLock, OneRunAtATime) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/a/b";
  {
    const RunLock lock("logger.log_dir", path);
    EXPECT_TRUE(lock.is_held());
    const std::string said = refusal(path);
    EXPECT_NE(said.find("logger.log_dir " + path + " is in use by another run (process " +
                        std::to_string(::getpid()) + " on "),
              std::string::npos)
        << said;
  }
  EXPECT_EQ(refusal(path), "taken");
}

// A process that is killed says nothing, and its lock is gone all the same.
TEST(RunLock, EndsWithItsProcess) {
  const ScratchFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock("logger.log_dir", folder.path());
    [[maybe_unused]] const ssize_t count = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_NE(refusal(folder.path()).find("process " + std::to_string(child)), std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(refusal(folder.path()), "taken");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(RunLock, AFolderThatCannotBeUsedIsNamedByItsKey) {
  const ScratchFolder folder;
  folder.write("file", "");
  EXPECT_THROW(RunLock("logger.log_dir", folder.path() + "/file/run"), DataError);
  try {
    check_writable("logger.log_dir", folder.path() + "/file/run");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.what(),
              "logger.log_dir " + folder.path() + "/file/run: cannot be made: Not a directory");
  }
  check_writable("logger.log_dir", folder.path() + "/new");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() + "/new"));
}

}  // namespace
}  // namespace grpo::app
