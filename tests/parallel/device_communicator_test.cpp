// Collectives of tensors on devices give the bits of the host's communicator. Needs a device for
// each rank, real or fake.
#include "parallel/comm/device_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <vector>

#include "model/core/host_transfer.h"
#include "tests/run_ranks.h"
#include "tests/test_device.h"

namespace grpo::parallel {
namespace {

using testing::run_ranks;
using testing::test_device;

constexpr auto kStream = Stream::none();

// A rank with its device attached, and a group of all ranks.
class Rank {
 public:
  explicit Rank(World& world)
      : allocator_(test_device()),
        attachment_(world.attach_device(allocator_)),
        random_(static_cast<uint64_t>(world.rank()) + 1) {
    for (int rank = 0; rank < world.size(); ++rank) ranks_.push_back(rank);
    group_ = world.make_group(ranks_, "world");
  }

  Communicator& group() { return *group_; }
  DeviceAttachment& attachment() { return *attachment_; }

  // Of many magnitudes, so that the order of a sum shows in its bits.
  std::vector<float> values(int64_t count) {
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-8, 8);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = std::ldexp(normal(random_), exponent(random_));
    return values;
  }
  OwnedTensor on_device(const std::vector<float>& values) {
    OwnedTensor tensor(allocator_, "test", DType::kFloat32, {static_cast<int64_t>(values.size())});
    copy_from_host<float>(tensor, values);
    return tensor;
  }
  OwnedTensor poisoned(int64_t count) {
    OwnedTensor tensor(allocator_, "test", DType::kFloat32, {count});
    poison_memory(tensor.view().raw(), tensor.view().size_bytes(), tensor.view().device());
    return tensor;
  }

 private:
  Allocator allocator_;
  std::unique_ptr<DeviceAttachment> attachment_;
  std::vector<int> ranks_;
  std::shared_ptr<Communicator> group_;
  std::mt19937_64 random_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

class DeviceCommunicatorTest : public ::testing::TestWithParam<int> {
 protected:
  // Runs on `num_ranks` ranks with a device each.
  void on_ranks(const std::function<void(Rank&)>& body) {
    if (!testing::has_device_for_ranks(GetParam())) {
      GTEST_SKIP() << "needs GRPO_TEST_DEVICE=cuda and " << GetParam() << " devices";
    }
    run_ranks(
        GetParam(),
        [&](World& world) {
          Rank rank(world);
          const DeviceFailureGuard guard(rank.attachment());
          ASSERT_FALSE(rank.attachment().description().empty());
          body(rank);
        },
        std::chrono::seconds(120));
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceCommunicatorTest, ::testing::Values(2, 3, 5),
                         ::testing::PrintToStringParamName());

// Nothing, one, primes, around the limit of small sums, more than one piece of a sum a rank.
std::vector<int64_t> sizes(int num_ranks) {
  std::vector<int64_t> all = {0, 1, 7, 10007, (1 << 18) - 1, (1 << 18) + 1};
  if (num_ranks == 2) all.push_back((int64_t{1} << 24) + 12345);
  return all;
}

TEST_P(DeviceCommunicatorTest, AllGather) {
  on_ranks([](Rank& rank) {
    Communicator& group = rank.group();
    for (const int64_t n : sizes(group.size())) {
      std::vector<float> in = rank.values(n);
      std::vector<float> wanted(static_cast<size_t>(n * group.size()));
      group.all_gather(host_tensor<float>(wanted), host_tensor<float>(in), kStream);
      const OwnedTensor out = rank.poisoned(n * group.size());
      group.all_gather(out, rank.on_device(in), kStream);
      EXPECT_TRUE(same_bits(to_host<float>(out), wanted)) << n;
      // From its own slot.
      const OwnedTensor in_place = rank.poisoned(n * group.size());
      const Tensor slot = in_place.view().rows(n * group.rank(), n);
      copy_from_host<float>(slot, in);
      group.all_gather(in_place, slot, kStream);
      EXPECT_TRUE(same_bits(to_host<float>(in_place), wanted)) << n << " in place";
    }
  });
}

TEST_P(DeviceCommunicatorTest, ReduceScatterAdd) {
  on_ranks([](Rank& rank) {
    Communicator& group = rank.group();
    for (const int64_t n : sizes(group.size())) {
      std::vector<float> in = rank.values(n * group.size());
      std::vector<float> wanted = rank.values(n);
      const OwnedTensor into = rank.on_device(wanted);
      group.reduce_scatter_add(host_tensor<float>(wanted), host_tensor<float>(in), kStream);
      const OwnedTensor source = rank.on_device(in);
      group.reduce_scatter_add(into, source, kStream);
      EXPECT_TRUE(same_bits(to_host<float>(into), wanted)) << n;
      EXPECT_TRUE(same_bits(to_host<float>(source), in)) << n << ": the input changed";
    }
  });
}

TEST_P(DeviceCommunicatorTest, AllReduceSum) {
  on_ranks([](Rank& rank) {
    Communicator& group = rank.group();
    for (const int64_t n : sizes(group.size())) {
      std::vector<float> values = rank.values(n);
      const OwnedTensor data = rank.on_device(values);
      group.all_reduce_sum(host_tensor<float>(values), kStream);
      group.all_reduce_sum(data, kStream);
      EXPECT_TRUE(same_bits(to_host<float>(data), values)) << n;
    }
  });
}

TEST_P(DeviceCommunicatorTest, Broadcast) {
  on_ranks([](Rank& rank) {
    Communicator& group = rank.group();
    for (int root = 0; root < group.size(); ++root) {
      std::vector<float> values = rank.values(1001);
      const OwnedTensor data = rank.on_device(values);
      group.broadcast(host_tensor<float>(values), root, kStream);
      group.broadcast(data, root, kStream);
      EXPECT_TRUE(same_bits(to_host<float>(data), values)) << "from " << root;
    }
  });
}

// Two messages to each peer of different sizes, one to oneself, and one by the host between them.
TEST_P(DeviceCommunicatorTest, Exchange) {
  on_ranks([](Rank& rank) {
    Communicator& group = rank.group();
    const auto code = [&](int from, int to, int index) {
      return static_cast<float>(from * 100 + to * 10 + index);
    };
    const auto size = [](int from, int to) { return int64_t{1} + from * 7 + to; };
    std::vector<OwnedTensor> memory;
    std::vector<std::vector<float>> host_memory;
    std::vector<PeerMessage> sends, receives;
    memory.reserve(64);
    host_memory.reserve(64);
    for (int peer = 0; peer < group.size(); ++peer) {
      for (int index = 0; index < 2; ++index) {
        const auto n = static_cast<size_t>(size(group.rank(), peer) + index);
        memory.push_back(rank.on_device(std::vector<float>(n, code(group.rank(), peer, index))));
        sends.push_back({peer, memory.back()});
        memory.push_back(rank.poisoned(size(peer, group.rank()) + index));
        receives.push_back({peer, memory.back()});
      }
      host_memory.emplace_back(3, code(group.rank(), peer, 9));
      sends.push_back({peer, host_tensor<float>(host_memory.back())});
      host_memory.emplace_back(3, -1.0f);
      receives.push_back({peer, host_tensor<float>(host_memory.back())});
    }
    group.exchange(sends, receives, kStream);
    size_t at = 0;
    for (int peer = 0; peer < group.size(); ++peer) {
      for (int index = 0; index < 2; ++index) {
        const auto n = static_cast<size_t>(size(peer, group.rank()) + index);
        EXPECT_EQ(to_host<float>(receives[at++].data),
                  std::vector<float>(n, code(peer, group.rank(), index)))
            << "message " << index << " from " << peer;
      }
      EXPECT_EQ(to_host<float>(receives[at++].data),
                std::vector<float>(3, code(peer, group.rank(), 9)));
    }
    group.barrier();
  });
}

// Members that have nothing to say stay away, and are not missed: first two exchange, then another
// two, then all.
TEST_P(DeviceCommunicatorTest, ExchangesOfSomeMembers) {
  on_ranks([](Rank& rank) {
    Communicator& group = rank.group();
    const auto greet = [&](const std::vector<int>& members) {
      std::vector<OwnedTensor> received;
      std::vector<PeerMessage> sends, receives;
      const OwnedTensor own = rank.on_device({static_cast<float>(group.rank())});
      received.reserve(members.size());
      for (const int peer : members) {
        if (!std::ranges::count(members, group.rank()) || peer == group.rank()) continue;
        sends.push_back({peer, own});
        received.push_back(rank.poisoned(1));
        receives.push_back({peer, received.back()});
      }
      group.exchange(sends, receives, kStream);
      for (const PeerMessage& message : receives) {
        EXPECT_EQ(to_host<float>(message.data)[0], static_cast<float>(message.peer));
      }
    };
    std::vector<int> everyone(static_cast<size_t>(group.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    for (int round = 0; round < 3; ++round) {
      greet({0, 1});
      greet({group.size() - 1, 0});
      greet(everyone);
    }
  });
}

TEST_P(DeviceCommunicatorTest, SubgroupsAndSolosBesideThem) {
  on_ranks([](Rank& rank) { rank.group().barrier(); });
  if (GetParam() != 5 || !testing::has_device_for_ranks(5)) return;
  run_ranks(5, [](World& world) {
    Allocator allocator(test_device());
    const auto attachment = world.attach_device(allocator);
    // Ranks 0, 2, 4 together; 1 and 3 alone.
    const bool is_even = world.rank() % 2 == 0;
    const auto group = world.make_group(
        is_even ? std::vector<int>{0, 2, 4} : std::vector<int>{world.rank()}, "even");
    const OwnedTensor data(allocator, "test", DType::kFloat32, {4});
    copy_from_host<float>(data, std::vector<float>(4, static_cast<float>(world.rank() + 1)));
    group->all_reduce_sum(data, kStream);
    EXPECT_EQ(to_host<float>(data),
              std::vector<float>(4, is_even ? 9.0f : static_cast<float>(world.rank() + 1)));
  });
}

}  // namespace
}  // namespace grpo::parallel
