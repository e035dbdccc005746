// The benchmark's measurements of whole phases. Times of a phase are those of the program's own
// calls, with no wait inside; how they divide comes from further runs of the same work, in which
// the device is waited for at the phases' borders.
#pragma once

#include <vector>

#include "tools/benchmark/report.h"
#include "tools/benchmark/rig.h"

namespace grpo::benchmark {

// The shape of a micro-batch.
PassShape pass_shape(const Options& options);

// An optimizer step of options().micro_batches micro-batches.
std::vector<PhaseRow> measure_training(Rig& rig);
// Log-probabilities of the same sequences.
std::vector<PhaseRow> measure_scoring(Rig& rig);
// One measurement for each of options().num_prompts.
std::vector<PhaseRow> measure_generation(Rig& rig);
// From the call to the generation model's first usable weight.
std::vector<PhaseRow> measure_refit(Rig& rig);

}  // namespace grpo::benchmark
