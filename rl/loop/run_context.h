// RunContext: what every part of a run shares on one rank.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "model/ops/matrix_library.h"
#include "parallel/comm/world.h"
#include "rl/config/run_config.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

// Owned by the trainer; one thread. Outlives everything that allocates from it.
struct RunContext {
  RunContext(const RunConfig& run_config, parallel::World& run_world, Device device,
             RunObserver& run_observer, const std::atomic<bool>& run_stop_requested)
      : config(run_config),
        world(run_world),
        observer(run_observer),
        stop_requested(run_stop_requested),
        allocator(device),
        attachment(run_world.attach_device(allocator)) {}
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  // Errors and memory peaks from here on belong to this phase.
  void enter(const std::string& phase, int64_t step) {
    world.set_phase(phase, step);
    allocator.set_phase(phase);
    current_phase = phase;
    current_step = step;
  }
  // The observer is heard on this rank.
  bool reports() const { return world.rank() == 0; }

  RunConfig config;
  parallel::World& world;
  RunObserver& observer;
  const std::atomic<bool>& stop_requested;
  Allocator allocator;
  std::unique_ptr<parallel::DeviceAttachment> attachment;  // outlives all groups of the run
  Workspace workspace{allocator};
  MatrixLibrary matrix_library{allocator.device()};
  OpContext ctx{allocator.device(), Stream::none(), workspace, &matrix_library,
                config.numerics.operators()};
  std::string current_phase;
  int64_t current_step = 0;
};

}  // namespace grpo::rl
