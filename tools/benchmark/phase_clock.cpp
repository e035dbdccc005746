#include "tools/benchmark/phase_clock.h"

#include <utility>

#include "model/core/device_cuda.h"

namespace grpo::benchmark {

void wait_for_device(Device device) {
  if (device.kind == DeviceKind::kCuda) cuda_synchronize(device, Stream::none());
}

void PhaseClock::enter(const std::string& phase) {
  wait_for_device(device_);
  const auto now = std::chrono::steady_clock::now();
  seconds_[phase_] += std::chrono::duration<double>(now - start_).count();
  phase_ = phase;
  start_ = now;
}

void PhaseClock::restart(const std::string& phase) {
  wait_for_device(device_);
  seconds_.clear();
  phase_ = phase;
  start_ = std::chrono::steady_clock::now();
}

double PhaseClock::seconds(const std::string& phase) const {
  const auto found = seconds_.find(phase);
  return found == seconds_.end() ? 0.0 : found->second;
}

class TimedStore::TimedPass : public Pass {
 public:
  TimedPass(TimedStore& store, std::unique_ptr<Pass> inner)
      : store_(store), inner_(std::move(inner)) {
    store_.clock_.enter(store_.first_phase_);
  }

  MaterializedWeight use(ParameterId parameter) override {
    const int nth = ++num_uses_[parameter];
    for (const PhaseBorder& border : store_.borders_) {
      if (border.parameter == parameter && border.use == nth) store_.clock_.enter(border.phase);
    }
    return inner_->use(parameter);
  }
  GradientView begin_grad(ParameterId parameter) override { return inner_->begin_grad(parameter); }
  void finish_grad(ParameterId parameter) override { inner_->finish_grad(parameter); }
  void finish() override {
    inner_->finish();
    store_.clock_.enter(store_.outside_);
  }

 private:
  // Weights belong to the inner pass, which they go back to by themselves.
  void release(ParameterId) noexcept override {}

  TimedStore& store_;
  std::unique_ptr<Pass> inner_;
  std::map<ParameterId, int> num_uses_;
};

TimedStore::TimedStore(ParameterStore& inner, PhaseClock& clock, std::string first_phase,
                       std::vector<PhaseBorder> borders, std::string outside)
    : inner_(inner),
      clock_(clock),
      first_phase_(std::move(first_phase)),
      borders_(std::move(borders)),
      outside_(std::move(outside)) {}

std::unique_ptr<Pass> TimedStore::begin_pass(const UseSchedule& schedule) {
  return std::make_unique<TimedPass>(*this, inner_.begin_pass(schedule));
}

}  // namespace grpo::benchmark
