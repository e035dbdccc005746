#include "tests/delayed_communicator.h"

#include <utility>

#include "model/core/device_cuda.h"
#include "tests/test_device.h"

namespace grpo::testing {

namespace {

// About a millisecond of a GPU: longer than the small models' steps between two collectives.
constexpr size_t kBusyBytes = size_t{256} << 20;
constexpr int kBusyRounds = 12;

bool is_real_gpu(Device device) {
  return device.kind == DeviceKind::kCuda && cuda_device_info(device).name != "fake device";
}

class DelayedCommunicator final : public Communicator {
 public:
  DelayedCommunicator(std::shared_ptr<Communicator> communicator, Delay kind,
                      std::shared_ptr<BusyWork> busy)
      : communicator_(std::move(communicator)), kind_(kind), busy_(std::move(busy)) {}

  const std::string& name() const override { return communicator_->name(); }
  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }

  void all_gather(const Tensor& out, const Tensor& in, Stream stream) override {
    make_busy(stream);
    communicator_->all_gather(out, in, stream);
  }
  void reduce_scatter_sum(const Tensor& out, const Tensor& in, Stream stream) override {
    make_busy(stream);
    communicator_->reduce_scatter_sum(out, in, stream);
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
    busy_->queue(kind_ == Delay::kCommunication ? stream : Stream::none());
  }

  std::shared_ptr<Communicator> communicator_;
  Delay kind_;
  std::shared_ptr<BusyWork> busy_;
};

parallel::AxisGroup delay_axis(const parallel::AxisGroup& axis, Delay kind,
                               const std::shared_ptr<BusyWork>& busy) {
  if (!axis.is_on()) return axis;
  const auto owner = std::make_shared<parallel::AxisGroup>(axis);
  return parallel::AxisGroup::of(std::make_shared<DelayedCommunicator>(
      std::shared_ptr<Communicator>(owner, &owner->communicator()), kind, busy));
}

}  // namespace

BusyWork::BusyWork(Allocator& allocator) {
  if (is_real_gpu(allocator.device())) memory_ = allocator.allocate("test/delay", kBusyBytes);
}

void BusyWork::queue(Stream stream) const {
  if (memory_.data() == nullptr) return;
  for (int i = 0; i < kBusyRounds; ++i) {
    cuda_fill_bytes(memory_.device(), memory_.data(), i, memory_.size_bytes(), stream);
  }
}

std::shared_ptr<Communicator> delay(std::shared_ptr<Communicator> communicator, Delay kind,
                                    Allocator& allocator) {
  if (kind == Delay::kNone || !is_real_gpu(allocator.device())) return communicator;
  return std::make_shared<DelayedCommunicator>(std::move(communicator), kind,
                                               std::make_shared<BusyWork>(allocator));
}

parallel::ProcessGroups delay(parallel::ProcessGroups groups, Delay kind, Allocator& allocator) {
  if (kind == Delay::kNone || !is_real_gpu(allocator.device())) return groups;
  const auto busy = std::make_shared<BusyWork>(allocator);
  for (parallel::AxisGroup* axis :
       {&groups.tp, &groups.gtp_remat, &groups.dp, &groups.data, &groups.world}) {
    *axis = delay_axis(*axis, kind, busy);
  }
  return groups;
}

std::vector<Delay> delays_of_ranks(int num_ranks) {
  if (!has_device_for_ranks(num_ranks) || !is_on_gpu()) return {Delay::kNone};
  return {Delay::kNone, Delay::kCommunication, Delay::kWork};
}

const char* delay_name(Delay kind) {
  switch (kind) {
    case Delay::kNone:
      return "no delay";
    case Delay::kCommunication:
      return "late communication";
    case Delay::kWork:
      return "late work";
  }
  return "";
}

}  // namespace grpo::testing
