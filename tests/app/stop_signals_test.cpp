#include "app/launch/stop_signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace grpo::app {
namespace {

// The same wish may reach a rank twice: through its process group and from the launcher.
TEST(StopSignals, OnlyALaterSecondInterruptEndsTheProcess) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    catch_stop_signals();
    ::raise(SIGINT);
    ::raise(SIGINT);
    const char reached = stop_requested() ? 'y' : 'n';
    if (::write(ends[1], &reached, 1) != 1) ::_exit(1);
    ::usleep(1'100'000);
    ::raise(SIGINT);
    ::_exit(0);  // not reached
  }
  ::close(ends[1]);
  char reached = ' ';
  EXPECT_EQ(::read(ends[0], &reached, 1), 1);
  ::close(ends[0]);
  EXPECT_EQ(reached, 'y');
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

}  // namespace
}  // namespace grpo::app
