// Tables of planned and measured memory for the console.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/run/memory_plan.h"

namespace grpo::rl {

// "3.1 MiB"
std::string bytes_text(size_t bytes);

// Owners in rows, phases in columns, of the fullest rank; then the peak of each phase over all
// ranks. The plan has at least one rank.
std::string plan_table(const MemoryPlan& plan);

// The owner with the most bytes at the fullest rank's peak: "policy/gradients (1.8 GiB)".
std::string biggest_owner(const MemoryPlan& plan);

// Planned and measured peak of each phase on the rank that came closest to its plan, or over it;
// and of what the phase took from the workspace, which is allocated once for all.
std::string comparison_table(const MemoryPlan& plan, const MeasuredMemory& measured);

}  // namespace grpo::rl
