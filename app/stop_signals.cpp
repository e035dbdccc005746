#include "app/stop_signals.h"

#include <algorithm>

namespace grpo::app {

namespace {

std::atomic<bool> is_stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

extern "C" void request_stop(int) { is_stop_requested.store(true, std::memory_order_relaxed); }

}  // namespace

void catch_stop_signals() {
  for (const int signal : kStopSignals) {
    if (!is_stop_signal(signal)) continue;
    struct sigaction action = {};
    action.sa_handler = request_stop;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    // A second Ctrl-C does not wait for the step to end.
    if (signal == SIGINT) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    sigaction(signal, &action, nullptr);
  }
}

const std::atomic<bool>& stop_requested() { return is_stop_requested; }

bool is_stop_signal(int signal) {
  if (std::find(kStopSignals.begin(), kStopSignals.end(), signal) == kStopSignals.end())
    return false;
  struct sigaction current = {};
  return signal != SIGHUP || sigaction(signal, nullptr, &current) != 0 ||
         current.sa_handler != SIG_IGN;
}

}  // namespace grpo::app
