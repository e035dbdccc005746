#include "parallel/comm/world.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "parallel/comm/device_communicator.h"
#include "parallel/comm/device_link.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/comm/rank_link.h"

namespace grpo::parallel {
namespace {

class LinkedWorld final : public World {
 public:
  explicit LinkedWorld(const WorldOptions& options) : link_(std::make_shared<RankLink>(options)) {
    link_->connect();
  }
  LinkedWorld(const LinkedWorld&) = delete;
  LinkedWorld& operator=(const LinkedWorld&) = delete;
  // Communicators may outlive the world; its connections do not.
  ~LinkedWorld() override { link_->close(); }

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }

  std::shared_ptr<Communicator> make_group(const std::vector<int>& ranks,
                                           const std::string& name) override {
    const bool is_ascending =
        std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
    CHECK(!ranks.empty() && is_ascending && ranks.front() >= 0 && ranks.back() < size() &&
              std::binary_search(ranks.begin(), ranks.end(), rank()),
          "group '{}' must list ascending ranks of a world of {} with rank {} among them", name,
          size(), rank());
    std::shared_ptr<Communicator> host = make_host_group(ranks, name);
    if (device_link_ == nullptr) return host;
    everyone_->barrier();  // NCCL crashes when a peer dies while it splits (seen with 2.28)
    std::shared_ptr<DeviceTransport> transport = device_link_->make_group(ranks, name);
    if (transport == nullptr) return host;
    return make_device_communicator(std::move(host), std::move(transport), *allocator_);
  }

  std::unique_ptr<DeviceAttachment> attach_device(Allocator& allocator) override {
    CHECK(device_link_ == nullptr, "a device is already attached");
    if (size() == 1 || allocator.device().kind == DeviceKind::kCpu) {
      return std::make_unique<Attachment>(nullptr);
    }
    std::vector<int> everyone(static_cast<size_t>(size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    everyone_ = make_host_group(everyone, "attachment");
    device_link_ = connect_device_link(allocator.device(), link_, *everyone_);
    allocator_ = &allocator;
    return std::make_unique<Attachment>(this);
  }
  void rethrow_failure() const override { link_->rethrow_failure(); }

  void set_phase(const std::string& phase, int64_t step) override { link_->set_phase(phase, step); }
  void record_failure(const Error& error) noexcept override { link_->record_failure(error); }
  std::optional<FailureRecord> first_failure(std::chrono::milliseconds grace) override {
    return link_->first_failure(grace);
  }

 private:
  class Attachment final : public DeviceAttachment {
   public:
    explicit Attachment(LinkedWorld* world) : world_(world) {}
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;
    ~Attachment() override {
      if (world_ != nullptr) world_->device_link_.reset();
    }
    std::string description() const override {
      return world_ == nullptr ? "" : world_->device_link_->description();
    }
    void abort() noexcept override {
      if (world_ != nullptr) world_->device_link_->abort();
    }

   private:
    LinkedWorld* world_;  // null when nothing is attached
  };

  std::shared_ptr<Communicator> make_host_group(const std::vector<int>& ranks,
                                                const std::string& name) {
    if (ranks.size() == 1) return make_solo_communicator(name);
    return make_group_communicator(link_, ranks, name, next_group_id(ranks, name));
  }

  // From what all members know without asking: the list, the name, and how many groups of both came
  // before.
  uint64_t next_group_id(const std::vector<int>& ranks, const std::string& name) {
    const int count = num_groups_[{ranks, name}]++;
    uint64_t id = mix_hash(0, static_cast<uint64_t>(count));
    for (const int rank : ranks) id = mix_hash(id, static_cast<uint64_t>(rank));
    for (const char c : name) id = mix_hash(id, static_cast<uint64_t>(c));
    return id;
  }

  std::shared_ptr<RankLink> link_;
  std::map<std::pair<std::vector<int>, std::string>, int> num_groups_;
  std::shared_ptr<Communicator> everyone_;   // of the last attachment, on the host
  std::shared_ptr<DeviceLink> device_link_;  // while a device is attached
  Allocator* allocator_ = nullptr;           // of that device
};

}  // namespace

std::unique_ptr<World> World::connect(const WorldOptions& options) {
  return std::make_unique<LinkedWorld>(options);
}

}  // namespace grpo::parallel
