// Times of single operators at the shapes of the training step.
#pragma once

#include <vector>

#include "tools/benchmark/report.h"
#include "tools/benchmark/rig.h"

namespace grpo::benchmark {

// Every operator of ModelWork::training_pass and optimizer_step on random operands, many calls in
// one wait; calls take turns over several sets of operands where one would fit into a cache.
std::vector<KernelRow> measure_kernels(Rig& rig);

// Every product among them under options().product_candidates algorithms, the library's choice
// first.
std::vector<ProductRow> measure_products(Rig& rig);

}  // namespace grpo::benchmark
