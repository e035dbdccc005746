#include "app/launch/phase_board.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/core/errors.h"

namespace grpo::app {
namespace {

TEST(PhaseBoard, ShowsWhatADeadProcessDidLast) {
  PhaseBoard board(3);
  const pid_t process = ::fork();
  if (process == 0) {
    for (int step = 0; step < 1000; ++step)
      board.write(1, step % 2 == 0 ? "refit" : "generation", step);
    ::_exit(0);
  }
  ::waitpid(process, nullptr, 0);
  EXPECT_EQ(board.read(1).phase, "generation");
  EXPECT_EQ(board.read(1).step, 999);
  EXPECT_EQ(board.read(0).phase, "setup");  // nothing was written
  EXPECT_EQ(board.read(2).step, 0);
}

TEST(PhaseBoard, CutsLongNamesAndRefusesRanksThatAreNotThere) {
  PhaseBoard board(1);
  board.write(0, std::string(100, 'x'), 5);
  EXPECT_EQ(board.read(0).phase, std::string(47, 'x'));
  board.write(0, "short", 6);
  EXPECT_EQ(board.read(0).phase, "short");
  EXPECT_THROW(board.read(1), InternalError);
  EXPECT_THROW(board.write(-1, "x", 0), InternalError);
}

}  // namespace
}  // namespace grpo::app
