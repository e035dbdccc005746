// RunContext: what every part of a run shares on one rank.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "model/device_context.h"
#include "parallel/comm/world.h"
#include "rl/config/run_config.h"
#include "rl/state/metrics.h"

namespace grpo::rl {

// Owned by the trainer; one thread. Outlives everything that allocates from it.
struct RunContext : model::DeviceContext {
  RunContext(const RunConfig& run_config, parallel::World& run_world, Device device,
             RunObserver& run_observer, const std::atomic<bool>& run_stop_requested)
      : model::DeviceContext(device, run_config.numerics.operators()),
        config(run_config),
        world(run_world),
        observer(run_observer),
        stop_requested(run_stop_requested),
        attachment(run_world.attach_device(allocator)) {}

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
  std::unique_ptr<parallel::DeviceAttachment> attachment;  // outlives all groups of the run
  std::string current_phase;
  int64_t current_step = 0;
};

}  // namespace grpo::rl
