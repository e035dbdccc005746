// Implements parallel/device_link.h between fake devices: by the host's messages on the host's
// mapping, when their stream comes to them.
#include <algorithm>
#include <map>
#include <utility>

#include "parallel/comm/device_link.h"
#include "parallel/comm/group_communicator.h"
#include "tests/fake_cuda/fake_memory.h"
#include "tests/fake_cuda/fake_streams.h"

namespace grpo::parallel {

namespace {

using testing::on_host;

class FakeTransport final : public DeviceTransport {
 public:
  FakeTransport(std::shared_ptr<RankLink> link, std::vector<int> ranks, const std::string& name,
                uint64_t id)
      : link_(std::move(link)),
        ranks_(std::move(ranks)),
        id_(id),
        host_(make_group_communicator(link_, ranks_, name, id)) {}

  void all_gather(const Tensor& out, const Tensor& in, Stream stream) override {
    testing::run_on_stream(stream, [host = host_, out, in, stream] {
      host->all_gather(on_host(out), on_host(in), stream);
    });
  }
  void broadcast(const Tensor& data, int root, Stream stream) override {
    testing::run_on_stream(stream, [host = host_, data, root, stream] {
      host->broadcast(on_host(data), root, stream);
    });
  }
  // Pair by pair, as members without messages stay away; in the order of the pairs' ranks, so that
  // no circle of waits can arise.
  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                const char*, Stream stream) override {
    for (int peer = 0; peer < host_->size(); ++peer) {
      const auto sent = with(peer, sends);
      const auto received = with(peer, receives);
      if (sent.empty() && received.empty()) continue;
      testing::run_on_stream(stream, [pair = pair_with(peer), sent, received, stream] {
        pair->exchange(sent, received, stream);
      });
    }
  }

 private:
  // The messages to or from a peer, as its pair has them.
  std::vector<PeerMessage> with(int peer, std::span<const PeerMessage> messages) const {
    const int place_in_pair = peer > host_->rank() ? 1 : 0;
    std::vector<PeerMessage> chosen;
    for (const auto& [other, data] : messages) {
      if (other != peer || data.num_elements() == 0) continue;
      chosen.push_back({place_in_pair, on_host(data)});
    }
    return chosen;
  }

  std::shared_ptr<Communicator> pair_with(int peer) {
    std::shared_ptr<Communicator>& pair = pairs_[peer];
    if (pair == nullptr) {
      const auto [low, high] = std::minmax(ranks_[static_cast<size_t>(host_->rank())],
                                           ranks_[static_cast<size_t>(peer)]);
      const uint64_t id =
          mix_hash(mix_hash(id_, static_cast<uint64_t>(low)), static_cast<uint64_t>(high));
      pair = make_group_communicator(link_, {low, high}, host_->name(), id);
    }
    return pair;
  }

  std::shared_ptr<RankLink> link_;
  std::vector<int> ranks_;
  uint64_t id_;
  std::shared_ptr<Communicator> host_;
  std::map<int, std::shared_ptr<Communicator>> pairs_;  // by peer
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
    return std::make_shared<FakeTransport>(link_, ranks, name, id);
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
