// Implements the streams and events of model/core/device_cuda.h.
#include "tests/fake_cuda/fake_streams.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "model/core/device_cuda.h"
#include "model/core/errors.h"

namespace grpo {
namespace {

class LateStream {
 public:
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }
  int64_t num_given() const { return num_begun_ + static_cast<int64_t>(work_.size()); }
  // Does the first `place` pieces of work ever given.
  void run_until(int64_t place) {
    while (num_begun_ < place) {
      const std::function<void()> next = std::move(work_.front());
      work_.pop_front();
      ++num_begun_;
      next();
    }
  }

 private:
  std::deque<std::function<void()>> work_;
  int64_t num_begun_ = 0;
};

using SharedStream = std::shared_ptr<LateStream>;

// Null for the default stream.
SharedStream late_stream(Stream stream) {
  return stream.handle == nullptr ? nullptr : *static_cast<SharedStream*>(stream.handle);
}

struct FakeEvent {
  SharedStream stream;
  int64_t place = 0;

  void finish() const {
    if (stream != nullptr) stream->run_until(place);
  }
};

}  // namespace

namespace testing {

void run_on_stream(Stream stream, std::function<void()> work) {
  if (const SharedStream late = late_stream(stream)) {
    late->add(std::move(work));
  } else {
    work();
  }
}

}  // namespace testing

Stream cuda_create_stream(Device) { return {new SharedStream(std::make_shared<LateStream>())}; }

void cuda_destroy_stream(Device device, Stream stream) noexcept {
  try {
    cuda_synchronize(device, stream);
  } catch (const Error&) {
    // A collective without its peers: the test failed before.
  }
  delete static_cast<SharedStream*>(stream.handle);
}

void cuda_synchronize(Device, Stream stream) {
  if (const SharedStream late = late_stream(stream)) late->run_until(late->num_given());
}

void* cuda_create_event(Device) { return new FakeEvent; }

void cuda_destroy_event(Device, void* event) noexcept { delete static_cast<FakeEvent*>(event); }

void cuda_record_event(Device, void* event, Stream stream) {
  const SharedStream late = late_stream(stream);
  *static_cast<FakeEvent*>(event) = {late, late == nullptr ? 0 : late->num_given()};
}

void cuda_wait_event(Device, Stream stream, void* event) {
  testing::run_on_stream(stream, [awaited = *static_cast<FakeEvent*>(event)] { awaited.finish(); });
}

bool cuda_event_is_done(Device, void* event) {
  static_cast<FakeEvent*>(event)->finish();
  return true;
}

}  // namespace grpo
