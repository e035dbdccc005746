#include "app/launch/stop_signals.h"

#include <time.h>

#include <algorithm>
#include <cstdint>

namespace grpo::app {

namespace {

std::atomic<bool> is_stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

// One wish of the user's may come twice: to the process group, and passed on by the launcher.
constexpr int64_t kSameWishNs = 1'000'000'000;
std::atomic<int64_t> first_interrupt_ns{0};  // 0: none yet
static_assert(std::atomic<int64_t>::is_always_lock_free, "set from a signal handler");

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

extern "C" void request_stop(int) { is_stop_requested.store(true, std::memory_order_relaxed); }

// A second Ctrl-C does not wait for the step to end.
extern "C" void interrupt(int) {
  const int64_t first = first_interrupt_ns.load(std::memory_order_relaxed);
  if (first == 0) {
    first_interrupt_ns.store(now_ns(), std::memory_order_relaxed);
    request_stop(SIGINT);
  } else if (now_ns() - first > kSameWishNs) {
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
  }
}

}  // namespace

void catch_stop_signals() {
  for (const int signal : kStopSignals) {
    if (!is_stop_signal(signal)) continue;
    struct sigaction action = {};
    action.sa_handler = signal == SIGINT ? interrupt : request_stop;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
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
