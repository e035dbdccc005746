// Implements parallel/device_link.h between fake devices: by the host's messages on the host's
// mapping, at once.
#include <map>
#include <utility>

#include "parallel/device_link.h"
#include "parallel/group_communicator.h"
#include "tests/fake_cuda/fake_memory.h"

namespace grpo::parallel {

namespace {

using testing::on_host;

std::vector<PeerMessage> on_host(std::span<const PeerMessage> messages) {
  std::vector<PeerMessage> moved;
  for (const auto& [peer, data] : messages) moved.push_back({peer, on_host(data)});
  return moved;
}

class FakeTransport final : public DeviceTransport {
 public:
  explicit FakeTransport(std::shared_ptr<Communicator> host) : host_(std::move(host)) {}

  void all_gather(const Tensor& out, const Tensor& in, Stream stream) override {
    host_->all_gather(on_host(out), on_host(in), stream);
  }
  void broadcast(const Tensor& data, int root, Stream stream) override {
    host_->broadcast(on_host(data), root, stream);
  }
  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                const char*, Stream stream) override {
    host_->exchange(on_host(sends), on_host(receives), stream);
  }

 private:
  std::shared_ptr<Communicator> host_;
};

class FakeLink final : public DeviceLink {
 public:
  explicit FakeLink(std::shared_ptr<RankLink> link) : link_(std::move(link)) {}

  std::shared_ptr<DeviceTransport> make_group(const std::vector<int>& ranks,
                                              const std::string& name) override {
    if (ranks.size() == 1) return nullptr;
    constexpr uint64_t kFakeGroups = 0xfa4e;
    uint64_t id = mix_hash(kFakeGroups, num_groups_++);
    for (const int rank : ranks) id = mix_hash(id, static_cast<uint64_t>(rank));
    return std::make_shared<FakeTransport>(make_group_communicator(link_, ranks, name, id));
  }
  void abort() noexcept override {}
  std::string description() const override { return "fake link"; }

 private:
  std::shared_ptr<RankLink> link_;
  uint64_t num_groups_ = 0;
};

}  // namespace

std::shared_ptr<DeviceLink> connect_device_link(Device, std::shared_ptr<RankLink> link,
                                                Communicator&) {
  return std::make_shared<FakeLink>(std::move(link));
}

std::string why_no_device_link() { return ""; }

}  // namespace grpo::parallel
