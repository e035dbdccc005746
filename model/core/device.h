// Where memory lives and work runs.
#pragma once

#include <cstdint>
#include <string>

namespace grpo {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind;
  int index;  // always 0 on the CPU
  // A rehearsal runs the real code on memory that is only counted: addresses are reserved, contents
  // mean nothing, and operators do no more than take their scratch.
  bool is_rehearsal = false;

  static constexpr Device cpu() { return {DeviceKind::kCpu, 0}; }
  constexpr Device rehearsal() const { return {kind, index, true}; }
  friend bool operator==(const Device&, const Device&) = default;
};

std::string device_name(Device device);  // "cpu", "cuda:0"

// A queue of device work. On the CPU work runs at once and the handle stays null; on a CUDA device
// null is the default stream.
struct Stream {
  void* handle;

  static constexpr Stream none() { return {nullptr}; }
};

}  // namespace grpo
