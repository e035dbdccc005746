// Ranks as processes of this machine, for runs without a launcher.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>

#include "app/launch/launch.h"

namespace grpo::app {

// Runs rank_main in `num_ranks` child processes and returns the run's exit code: 0 when all
// returned 0, else that of the first failure: 5 for a child killed by a signal, 1 when that was a
// stop signal which the run itself was sent. With one rank it runs rank_main here and forks
// nothing.
//
// Called from a program's only thread: threads do not survive a fork. Stop signals go on to all
// children. No child outlives this process. A child that dies without a report gets its failure
// printed and recorded for it, in the rendezvous folder, so that the others stop. After the first
// failure a child that is stopped (SIGSTOP) is killed at once; one that has not ended `grace` later
// is terminated, then killed. A child ends as by _exit: rank_main flushes its own logs. The
// rendezvous folder is removed at the end, and at the start those that launchers of this system
// left when they were killed. Throws ConfigError when that folder cannot be made.
int run_local_ranks(int num_ranks, const std::filesystem::path& rendezvous_parent,
                    const std::function<int(const LaunchEnvironment&)>& rank_main,
                    std::chrono::milliseconds grace = std::chrono::seconds(10));

}  // namespace grpo::app
