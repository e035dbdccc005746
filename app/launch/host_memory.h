// How much memory this machine and its GPUs have left for a run.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "app/launch/launch.h"
#include "rl/run/memory_plan.h"

namespace grpo::app {

// The lower of what the system calls available and what the process's control groups leave; nothing
// where neither can be read. `root` is where /proc and /sys are looked for.
std::optional<size_t> available_memory_bytes(const std::filesystem::path& root = "/");

// Of a launch of `world_size` ranks: those on this machine, as the launcher's environment tells;
// all of them for local ranks and where nothing is told.
int num_ranks_here(int world_size, const VariableLookup& lookup);
int num_ranks_here(int world_size);

// For a plan of this machine's own memory, or of a GPU that is here and its one rank; "" where the
// memory cannot be read.
std::string memory_warning(const rl::MemoryPlan& plan);
// A warning when `num_ranks` of the plan need more than `available`: the biggest owner and what
// would fit. "" when they fit.
std::string memory_warning(const rl::MemoryPlan& plan, int num_ranks, size_t available);

}  // namespace grpo::app
