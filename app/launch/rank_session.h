// RankSession: one command as a set of ranks: how many there are, starting or joining them, their
// world, and one error line for each root cause.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>

#include "app/launch/launch.h"
#include "parallel/comm/world.h"
#include "parallel/layout/parallel_config.h"

namespace grpo::app {

struct RankContext {
  const LaunchEnvironment& environment;
  parallel::World& world;
  // Set by a stop signal once catch_stop_signals() was called; looked at between steps.
  const std::atomic<bool>& stop_requested;
};

struct RankPlan {
  std::optional<LaunchEnvironment> environment;  // of a launcher; empty: ranks are local processes
  int world_size;
  std::chrono::milliseconds timeout;  // of every wait for a peer
  std::filesystem::path
      meeting_folder;  // made if missing; every rank must be able to reach and write it
};

// Launcher's environment, --nproc, or the mesh of the config, in this order. Throws ConfigError
// when --nproc is given to a process that a launcher started.
RankPlan plan_ranks(const std::optional<int>& num_local_ranks,
                    const parallel::ParallelConfig& config,
                    const std::filesystem::path& meeting_folder);

// Runs `body` on every rank of the plan and returns the exit code of the command: the body's, or
// that of the first failure. A rank's error is printed by that rank, once: ranks that stop because
// of another one say nothing. Called from the program's only thread. Throws ConfigError when local
// ranks cannot meet.
int run_ranks(const RankPlan& plan, const std::function<ExitCode(RankContext&)>& body);

}  // namespace grpo::app
