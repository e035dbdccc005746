// Signals that ask a run to stop: at its next step boundary, with a checkpoint where those are on.
#pragma once

#include <signal.h>

#include <array>
#include <atomic>

namespace grpo::app {

// SIGHUP is one of them unless the process was started with it ignored, as nohup does.
inline constexpr std::array<int, 4> kStopSignals = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};

// From here on they set stop_requested() instead of ending the process; a second SIGINT, a second
// or more after the first, ends it. Children that are forked later inherit both. Called from the
// program's only thread; again without effect.
void catch_stop_signals();

const std::atomic<bool>& stop_requested();

// False for a signal that the process was told to ignore.
bool is_stop_signal(int signal);

}  // namespace grpo::app
