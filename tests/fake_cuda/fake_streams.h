// Streams of the fake device. The default stream works at once, the others as late as they may:
// when an event recorded on them holds back other work, or the host waits for them. So a wait that
// is missing leaves stale bytes in every run.
#pragma once

#include <functional>

#include "model/core/device.h"

namespace grpo::testing {

// Work of a stream, in the order given. Of the operators only those that run on such streams come
// through here; the others run at once. One thread a stream.
void run_on_stream(Stream stream, std::function<void()> work);

}  // namespace grpo::testing
