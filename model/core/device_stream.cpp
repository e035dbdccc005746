#include "model/core/device_stream.h"

#include <utility>

#include "model/core/device_cuda.h"

namespace grpo {

namespace {

bool has_streams(Device device) { return device.kind == DeviceKind::kCuda && !device.is_rehearsal; }

}  // namespace

DeviceStream::DeviceStream(Device device) : device_(device) {
  if (has_streams(device_)) stream_ = cuda_create_stream(device_);
}

DeviceStream::~DeviceStream() {
  if (has_streams(device_)) cuda_destroy_stream(device_, stream_);
}

DeviceEvent::DeviceEvent(Device device) : device_(device) {
  if (has_streams(device_)) event_ = cuda_create_event(device_);
}

DeviceEvent::DeviceEvent(DeviceEvent&& other) noexcept
    : device_(std::exchange(other.device_, Device::cpu())),
      event_(std::exchange(other.event_, nullptr)) {}

DeviceEvent::~DeviceEvent() {
  if (has_streams(device_)) cuda_destroy_event(device_, event_);
}

void DeviceEvent::record(Stream stream) {
  if (has_streams(device_)) cuda_record_event(device_, event_, stream);
}

void DeviceEvent::hold_back(Stream stream) const {
  if (has_streams(device_)) cuda_wait_event(device_, stream, event_);
}

bool DeviceEvent::is_done() const {
  return !has_streams(device_) || cuda_event_is_done(device_, event_);
}

}  // namespace grpo
