// Where memory lives and work runs.
#pragma once

#include <cstdint>
#include <string>

namespace grpo {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind;
  int index;  // always 0 on the CPU

  static constexpr Device cpu() { return {DeviceKind::kCpu, 0}; }
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
