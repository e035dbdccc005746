#include "tests/delayed_communicator.h"

#include <utility>

#include "model/core/device_cuda.h"
#include "tests/test_device.h"

namespace grpo::testing {

namespace {

// About a millisecond of a GPU: longer than the small models' steps between two collectives.
constexpr size_t kBusyBytes = size_t{256} << 20;
constexpr int kBusyRounds = 12;

void occupy(const Buffer& busy, Stream stream) {
  for (int i = 0; i < kBusyRounds; ++i) {
    cuda_fill_bytes(busy.device(), busy.data(), i, busy.size_bytes(), stream);
  }
}

class DelayedCommunicator final : public Communicator {
 public:
  DelayedCommunicator(std::shared_ptr<Communicator> communicator, Delay kind, Allocator& allocator)
      : communicator_(std::move(communicator)),
        kind_(kind),
        busy_(allocator.allocate("test/delay", kBusyBytes)) {}

  const std::string& name() const override { return communicator_->name(); }
  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }

  void all_gather(const Tensor& out, const Tensor& in, Stream stream) override {
    make_busy(stream);
    communicator_->all_gather(out, in, stream);
  }
  void reduce_scatter_add(const Tensor& into, const Tensor& in, Stream stream) override {
    make_busy(stream);
    communicator_->reduce_scatter_add(into, in, stream);
  }
  void all_reduce_sum(const Tensor& data, Stream stream) override {
    make_busy(stream);
    communicator_->all_reduce_sum(data, stream);
  }
  void broadcast(const Tensor& data, int root, Stream stream) override {
    make_busy(stream);
    communicator_->broadcast(data, root, stream);
  }
  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                Stream stream) override {
    make_busy(stream);
    communicator_->exchange(sends, receives, stream);
  }
  void barrier() override { communicator_->barrier(); }
  const CommCounters& counters() const override { return communicator_->counters(); }

 private:
  void make_busy(Stream stream) {
    occupy(busy_, kind_ == Delay::kCommunication ? stream : Stream::none());
  }

  std::shared_ptr<Communicator> communicator_;
  Delay kind_;
  Buffer busy_;
};

bool is_real_gpu(Device device) {
  return device.kind == DeviceKind::kCuda && cuda_device_info(device).name != "fake device";
}

}  // namespace

std::shared_ptr<Communicator> delay(std::shared_ptr<Communicator> communicator, Delay kind,
                                    Allocator& allocator) {
  if (kind == Delay::kNone || !is_real_gpu(allocator.device())) return communicator;
  return std::make_shared<DelayedCommunicator>(std::move(communicator), kind, allocator);
}

parallel::ProcessGroups delay(parallel::ProcessGroups groups, Delay kind, Allocator& allocator) {
  for (parallel::AxisGroup* axis : {&groups.tp, &groups.gtp_remat, &groups.dp}) {
    if (axis->size() == 1) continue;
    const auto owner = std::make_shared<parallel::AxisGroup>(*axis);
    *axis = parallel::AxisGroup::of(
        delay(std::shared_ptr<Communicator>(owner, &owner->communicator()), kind, allocator));
  }
  return groups;
}

std::vector<Delay> delays_for(int num_ranks) {
  if (!has_device_for_ranks(num_ranks) || !is_real_gpu({DeviceKind::kCuda, 0})) {
    return {Delay::kNone};
  }
  return {Delay::kNone, Delay::kCommunication, Delay::kWork};
}

const char* delay_name(Delay kind) {
  static const char* const kNames[] = {"", "late_communication", "late_work"};
  return kNames[static_cast<int>(kind)];
}

LateWork::LateWork(Delay kind, Allocator& allocator) {
  if (kind == Delay::kWork && is_real_gpu(allocator.device())) {
    busy_ = allocator.allocate("test/delay", kBusyBytes);
  }
}

void LateWork::queue() const {
  if (busy_.data() != nullptr) occupy(busy_, Stream::none());
}

}  // namespace grpo::testing
