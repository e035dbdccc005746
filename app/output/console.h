// Console: what a run says to the person who watches it.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "rl/state/gates.h"
#include "rl/state/metrics.h"

namespace spdlog {
class logger;
}

namespace grpo::app {

// One thread. Times are local; numbers are rounded for reading (files hold them whole).
class Console {
 public:
  // The progress bar is drawn only on a terminal.
  Console(std::ostream& out, bool is_terminal);
  ~Console();

  void message(const std::string& line);
  void warning(const std::string& line);
  void error(const std::string& line);
  // A block of aligned columns: reward, loss, agreement of trainer and generator, lengths, speed,
  // times.
  void step(int64_t step, int64_t num_steps, const rl::MetricSet& metrics);
  void progress(const std::string& phase, int64_t done, int64_t total);
  // A completion, cut to a line.
  void sample(const std::string& json_line);
  void gate_summary(const std::vector<rl::GateSummary>& gates);

 private:
  void clear_progress();

  std::ostream& out_;
  bool is_terminal_;
  bool has_progress_ = false;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace grpo::app
