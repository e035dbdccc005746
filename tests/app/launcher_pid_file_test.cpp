// Meeting folders of launchers that were killed.
#include "app/launch/launcher_pid_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/launch/local_ranks.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

using testing::ScratchFolder;

bool is_there(const ScratchFolder& folder, const std::string& name) {
  return std::filesystem::exists(folder.path() + "/" + name);
}

TEST(LauncherMark, FoldersOfLivingLaunchersStay) {
  const ScratchFolder folder;
  folder.write("own/store", "");
  mark_launcher(folder.path() + "/own");
  const std::string mark = folder.read("own/launcher");
  ASSERT_FALSE(mark.empty());
  folder.write("unmarked/store", "");
  folder.write("cut_off/launcher", mark.substr(0, mark.find('\n')));
  folder.write("elsewhere/launcher", "another" + mark);  // the host's name comes first
  const std::string system = mark.substr(0, mark.find('\n') + 1);
  const std::string own = mark.substr(system.size());  // "pid start"
  folder.write("ended/launcher", system + own.substr(0, own.find(' ')) + " 1\n");
  remove_abandoned_folders(folder.path());
  for (const char* name : {"own", "unmarked", "cut_off", "elsewhere"}) {
    EXPECT_TRUE(is_there(folder, name)) << name;
  }
  EXPECT_FALSE(is_there(folder, "ended"));  // its process has this pid now and another start
}

int num_entries(const std::filesystem::path& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().empty()) ++count;
  }
  return count;
}

TEST(LauncherMark, TheNextStartRemovesWhatAKilledLauncherLeft) {
  ::alarm(60);  // a hang ends the program
  const ScratchFolder folder;
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    run_local_ranks(2, folder.path(), [&](const LaunchEnvironment& environment) {
      folder.write("started-" + std::to_string(environment.rank), "");
      ::pause();
      return 0;
    });
    ::_exit(0);
  }
  while (!is_there(folder, "started-0") || !is_there(folder, "started-1")) ::usleep(1000);
  const std::filesystem::path meeting = folder.path() + "/.rendezvous";
  const auto start_another = [&] {
    return run_local_ranks(1, folder.path(), [](const LaunchEnvironment&) { return 0; });
  };
  EXPECT_EQ(start_another(), 0);
  EXPECT_EQ(num_entries(meeting), 1);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_EQ(num_entries(meeting), 1);
  EXPECT_EQ(start_another(), 0);
  EXPECT_FALSE(std::filesystem::exists(meeting));
  ::alarm(0);
}

}  // namespace
}  // namespace grpo::app
