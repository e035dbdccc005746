// Owners of a device's streams and events. On the CPU, where work runs at once, and in rehearsals
// they do nothing.
#pragma once

#include "model/core/device.h"

namespace grpo {

// A stream that runs beside all others; events order it with them.
class DeviceStream {
 public:
  explicit DeviceStream(Device device);
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream();

  Stream get() const { return stream_; }

 private:
  Device device_;
  Stream stream_ = Stream::none();
};

// A place in a stream: where it was last recorded.
class DeviceEvent {
 public:
  explicit DeviceEvent(Device device);
  DeviceEvent(DeviceEvent&& other) noexcept;
  DeviceEvent& operator=(DeviceEvent&&) = delete;
  ~DeviceEvent();

  void record(Stream stream);
  // What `stream` is given from here on waits for the place.
  void hold_back(Stream stream) const;
  // True when everything before the place is done.
  bool is_done() const;

 private:
  Device device_;
  void* event_ = nullptr;
};

}  // namespace grpo
