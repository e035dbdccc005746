// CapturedWork: work of a CUDA device that is recorded once and started again by one call.
#pragma once

#include <functional>
#include <memory>

#include "model/core/device.h"

namespace grpo {

// Owned by one thread. What the work reads and writes stays where it is for this object's life.
class CapturedWork {
 public:
  // Records what `work` gives to the stream that it is handed; nothing of it runs. It has run
  // before in the same way, and neither waits for the device nor takes new memory of it. Throws
  // CudaError when the device cannot record it, and what `work` throws.
  CapturedWork(Device device, std::function<void(Stream)> work);
  ~CapturedWork();
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  // Runs all of it, in order of the stream.
  void launch(Stream stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace grpo
