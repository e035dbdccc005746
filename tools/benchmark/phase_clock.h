// PhaseClock: how a stretch of work divides into phases, by waiting for the device at their borders
// alone. TimedStore finds the borders inside a model's pass from the outside: it hands a
// Transformer the passes of another store and watches which weight is used.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/core/device.h"
#include "model/core/parameter_store.h"

namespace grpo::benchmark {

// Returns when the device has done all that was given to it.
void wait_for_device(Device device);

// One thread; the program's one stream.
class PhaseClock {
 public:
  explicit PhaseClock(Device device) : device_(device) {}

  // Waits for the device; time since the last border belongs to the phase that ends.
  void enter(const std::string& phase);
  // Forgets all times and begins with `phase`.
  void restart(const std::string& phase);
  // Of the phases that have ended; 0 for one that never came.
  double seconds(const std::string& phase) const;

 private:
  Device device_;
  std::string phase_;
  std::chrono::steady_clock::time_point start_;
  std::map<std::string, double> seconds_;
};

// From the `use`-th read of a parameter in a pass (counted from 1) on, time belongs to `phase`.
struct PhaseBorder {
  ParameterId parameter;
  int use;
  std::string phase;
};

// The passes of `inner`, with the clock entering `first_phase` where one begins, the phases of the
// borders where they lie, and `outside` where it ends. All referred to outlive it.
class TimedStore : public ParameterStore {
 public:
  TimedStore(ParameterStore& inner, PhaseClock& clock, std::string first_phase,
             std::vector<PhaseBorder> borders, std::string outside);

  const std::vector<ParameterSpec>& specs() const override { return inner_.specs(); }
  DType dtype() const override { return inner_.dtype(); }
  std::unique_ptr<Pass> begin_pass(const UseSchedule& schedule) override;
  uint64_t version() const override { return inner_.version(); }

 private:
  class TimedPass;

  ParameterStore& inner_;
  PhaseClock& clock_;
  std::string first_phase_;
  std::vector<PhaseBorder> borders_;
  std::string outside_;
};

}  // namespace grpo::benchmark
