// LaunchEnvironment: which rank of which launch this process is, read from the environment of srun,
// torchrun or mpirun, or from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand. Two
// variables of our own override what is found there:
//   GRPO_LAUNCH_ID  a value equal for all ranks of a launch and new for each launch
//   GRPO_HOST       the address or name on which this rank listens for the others
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace grpo::app {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;              // among the ranks of this machine
  std::string launcher = "local";  // "srun", "torchrun", "mpirun", "env" (by hand), or "local" for
                                   // ranks started by ourselves
  std::string nonce;  // equal for all ranks of a launch, new for each; fit for a file name
  std::string host =
      "127.0.0.1";  // where this rank listens; loopback when all ranks share the machine
  // Tells the process that started a local rank what the rank does; empty under a launcher.
  std::function<void(const std::string& phase, int64_t step)> report_phase = {};
};

// An environment variable's value; nullopt when it is not set.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

// The innermost launcher wins: torchrun or mpirun inside an srun step. nullopt when none started
// this process; the shell of salloc or sbatch is no launcher. Throws ConfigError that names the
// variable whose value is malformed, missing or at odds with another.
std::optional<LaunchEnvironment> read_launch_environment();
std::optional<LaunchEnvironment> read_launch_environment(const VariableLookup& lookup);

// Whether this process prints the errors that every rank of its launch has alike, such as a bad
// config file: it is rank 0, or nobody's rank, or cannot tell.
bool speaks_for_launch() noexcept;
bool speaks_for_launch(const VariableLookup& lookup) noexcept;

// Where the ranks of a launch meet: <parent>/.rendezvous/<nonce>. Every rank must be able to reach
// `parent`.
std::filesystem::path rendezvous_folder(const std::filesystem::path& parent,
                                        const LaunchEnvironment& environment);

}  // namespace grpo::app
