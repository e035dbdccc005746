// Stopwatch: adds the life of this object to a total.
#pragma once

#include <chrono>

namespace grpo::rl {

class Stopwatch {
 public:
  explicit Stopwatch(double& total_seconds) : total_seconds_(total_seconds) {}
  ~Stopwatch() {
    total_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace grpo::rl
