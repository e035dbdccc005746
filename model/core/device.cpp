#include "model/core/device.h"

namespace grpo {

std::string device_name(Device device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace grpo
