#include "parallel/comm/rehearsal_world.h"

#include <algorithm>

#include "parallel/comm/collective_arguments.h"
#include "parallel/comm/device_communicator.h"

namespace grpo::parallel {

namespace {

class RehearsalCommunicator final : public Communicator {
 public:
  RehearsalCommunicator(int rank, int size, const std::string& name)
      : rank_(rank), size_(size), name_(name) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(const Tensor& out, const Tensor& in, Stream) override {
    check_all_gather(out, in, size_);
    if (out.device().is_rehearsal) return;
    const Tensor flat = out.reshaped({out.num_elements()});
    for (int member = 0; member < size_; ++member) {
      copy_tensor(flat.rows(member * in.num_elements(), in.num_elements()), in);
    }
  }
  void reduce_scatter_add(const Tensor& into, const Tensor& in, Stream) override {
    check_reduce_scatter(into, in, size_);
  }
  void all_reduce_sum(const Tensor& data, Stream) override { check_all_reduce(data); }
  void broadcast(const Tensor&, int root, Stream) override { check_broadcast(root, size_); }
  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                Stream) override {
    check_exchange(sends, receives, size_);
  }
  void barrier() override {}

  const CommCounters& counters() const override { return counters_; }

 private:
  int rank_;
  int size_;
  std::string name_;
  CommCounters counters_;
};

class RehearsalWorld final : public World {
 public:
  RehearsalWorld(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::shared_ptr<Communicator> make_group(const std::vector<int>& ranks,
                                           const std::string& name) override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank_);
    CHECK(own != ranks.end(), "rank {} is not in its group {}", rank_, name);
    auto host = std::make_shared<RehearsalCommunicator>(static_cast<int>(own - ranks.begin()),
                                                        static_cast<int>(ranks.size()), name);
    if (allocator_ == nullptr || ranks.size() == 1) return host;
    return make_device_communicator(std::move(host), make_rehearsal_transport(), *allocator_);
  }
  std::unique_ptr<DeviceAttachment> attach_device(Allocator& allocator) override {
    if (allocator.device().kind == DeviceKind::kCuda) allocator_ = &allocator;
    return std::make_unique<Attachment>(*this);
  }
  void rethrow_failure() const override {}
  void set_phase(const std::string&, int64_t) override {}
  void record_failure(const Error&) noexcept override {}
  std::optional<FailureRecord> first_failure(std::chrono::milliseconds) override {
    return std::nullopt;
  }

 private:
  class Attachment final : public DeviceAttachment {
   public:
    explicit Attachment(RehearsalWorld& world) : world_(world) {}
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;
    ~Attachment() override { world_.allocator_ = nullptr; }
    std::string description() const override { return "rehearsal"; }
    void abort() noexcept override {}

   private:
    RehearsalWorld& world_;
  };

  int rank_;
  int size_;
  Allocator* allocator_ = nullptr;  // of the attached device
};

}  // namespace

std::unique_ptr<World> make_rehearsal_world(int rank, int size) {
  return std::make_unique<RehearsalWorld>(rank, size);
}

}  // namespace grpo::parallel
