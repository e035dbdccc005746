// Every collective with exact small integers, over groups of 1 to 5 ranks and sub-groups of a mesh.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "model/core/buffer.h"
#include "tests/run_ranks.h"

namespace grpo::parallel {
namespace {

using grpo::testing::run_ranks;

constexpr auto kStream = Stream::none();

std::shared_ptr<Communicator> world_group(World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return world.make_group(ranks, "world");
}

template <typename T>
class Values {
 public:
  explicit Values(int64_t count) : values_(static_cast<size_t>(count)) {}
  template <typename Function>
  Values(int64_t count, Function value_at) : Values(count) {
    for (int64_t i = 0; i < count; ++i) (*this)[i] = T(value_at(i));
  }
  T& operator[](int64_t i) { return values_[static_cast<size_t>(i)]; }
  Tensor tensor() { return part(0, static_cast<int64_t>(values_.size())); }
  Tensor part(int64_t begin, int64_t count) {
    return Tensor(values_.data() + begin, DTypeOf<T>::value, Shape{count}, Device::cpu());
  }

 private:
  std::vector<T> values_;
};

// A small integer that differs by rank and position.
int64_t value_of(int rank, int64_t i) { return (i * 7 + rank * 31) % 101 - 50; }

int64_t sum_over_ranks(int size, int64_t i) {
  int64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += value_of(rank, i);
  return sum;
}

// Fails on the first difference only, so that a broken sum does not print a million lines.
template <typename T, typename Function>
void expect_values(Values<T>& values, int64_t count, Function expected, const std::string& what) {
  for (int64_t i = 0; i < count; ++i) {
    const auto got = static_cast<int64_t>(static_cast<double>(static_cast<T>(values[i])));
    ASSERT_EQ(got, expected(i)) << what << " at " << i << " of " << count;
  }
}

const std::vector<int64_t>& sizes() {
  // 0, 1, primes, around the small all-reduce limit, and more than one piece of a sum.
  static const std::vector<int64_t> kSizes = {0, 1, 2, 3, 7, 127, 2048, 2049, 10007, 1'300'021};
  return kSizes;
}

class CollectiveTest : public ::testing::TestWithParam<int> {};

TEST_P(CollectiveTest, AllGather) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    for (const int64_t n : sizes()) {
      Values<float> in(n, [&](int64_t i) { return value_of(world.rank(), i); });
      Values<float> out(n * world.size(), [](int64_t) { return -1000; });
      group->all_gather(out.tensor(), in.tensor(), kStream);
      expect_values(
          out, n * world.size(),
          [&](int64_t i) { return value_of(static_cast<int>(i / n), i % n); }, "all_gather");
    }
  });
}

TEST_P(CollectiveTest, AllGatherFromItsOwnSlot) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    const int64_t n = 1009;
    Values<int32_t> out(n * world.size(), [](int64_t) { return -1000; });
    for (int64_t i = 0; i < n; ++i)
      out[world.rank() * n + i] = static_cast<int32_t>(value_of(world.rank(), i));
    group->all_gather(out.tensor(), out.part(world.rank() * n, n), kStream);
    expect_values(
        out, n * world.size(), [&](int64_t i) { return value_of(static_cast<int>(i / n), i % n); },
        "all_gather in place");
  });
}

TEST_P(CollectiveTest, AllGatherMovesBfloat16BitsUnchanged) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    const int64_t n = 4099;
    const auto bits_of = [](int rank, int64_t i) {  // every kind of bit pattern, NaNs included
      return static_cast<uint16_t>(i * 16 + rank + 0x7f00);
    };
    Values<Bfloat16> in(n), out(n * world.size());
    for (int64_t i = 0; i < n; ++i) in[i].bits = bits_of(world.rank(), i);
    group->all_gather(out.tensor(), in.tensor(), kStream);
    for (int64_t i = 0; i < n * world.size(); ++i) {
      ASSERT_EQ(out[i].bits, bits_of(static_cast<int>(i / n), i % n)) << i;
    }
  });
}

TEST_P(CollectiveTest, ReduceScatterAdd) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    for (const int64_t n : sizes()) {
      Values<float> in(n * world.size(), [&](int64_t i) { return value_of(world.rank(), i); });
      Values<float> out(n, [](int64_t) { return -1000; });
      group->reduce_scatter_add(out.tensor(), in.tensor(), kStream);
      expect_values(
          out, n,
          [&](int64_t i) { return -1000 + sum_over_ranks(world.size(), world.rank() * n + i); },
          "reduce_scatter");
    }
  });
}

TEST_P(CollectiveTest, AllReduceSumOfFloats) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    for (const int64_t n : sizes()) {
      Values<float> data(n, [&](int64_t i) { return value_of(world.rank(), i); });
      group->all_reduce_sum(data.tensor(), kStream);
      expect_values(
          data, n, [&](int64_t i) { return sum_over_ranks(world.size(), i); }, "all_reduce");
    }
  });
}

TEST_P(CollectiveTest, AllReduceSumOfIntegersWraps) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    for (const int64_t n : {int64_t{3}, int64_t{5003}}) {
      // Everyone adds 2^63 - 1 + rank.
      Values<int64_t> data(n, [&](int64_t) { return INT64_MAX; });
      for (int64_t i = 0; i < n; ++i) data[i] -= world.rank();
      group->all_reduce_sum(data.tensor(), kStream);
      uint64_t expected = 0;
      for (int rank = 0; rank < world.size(); ++rank) {
        expected += static_cast<uint64_t>(INT64_MAX) - static_cast<uint64_t>(rank);
      }
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(data[i], static_cast<int64_t>(expected)) << i;
    }
  });
}

TEST_P(CollectiveTest, Broadcast) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    for (int root = 0; root < world.size(); ++root) {
      for (const int64_t n : sizes()) {
        Values<int32_t> data(n, [&](int64_t i) { return value_of(world.rank(), i); });
        group->broadcast(data.tensor(), root, kStream);
        expect_values(
            data, n, [&](int64_t i) { return value_of(root, i); }, "broadcast");
      }
    }
  });
}

// The k-th message from s to r has (s + 2 r + 3 k) % 5 elements, so some are empty.
int64_t message_size(int from, int to, int k) { return (from + 2 * to + 3 * k) % 5; }
int32_t message_value(int from, int to, int k, int64_t i) {
  return static_cast<int32_t>(from * 1000 + to * 100 + k * 10 + i);
}

TEST_P(CollectiveTest, ExchangeMatchesMessagesInOrderPerPair) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    constexpr int kMessages = 4;
    const int me = world.rank();
    std::vector<Values<int32_t>> sent, received;
    std::vector<PeerMessage> sends, receives;
    sent.reserve(100);
    received.reserve(100);
    for (int k = 0; k < kMessages; ++k) {
      for (int peer = 0; peer < world.size(); ++peer) {
        sent.emplace_back(message_size(me, peer, k),
                          [&](int64_t i) { return message_value(me, peer, k, i); });
        received.emplace_back(message_size(peer, me, k), [](int64_t) { return -1; });
        sends.push_back({peer, sent.back().tensor()});
        receives.push_back({peer, received.back().tensor()});
      }
    }
    group->exchange(sends, receives, kStream);
    size_t next = 0;
    for (int k = 0; k < kMessages; ++k) {
      for (int peer = 0; peer < world.size(); ++peer) {
        expect_values(
            received[next++], message_size(peer, me, k),
            [&](int64_t i) { return message_value(peer, me, k, i); }, "exchange");
      }
    }
  });
}

TEST_P(CollectiveTest, ExchangeInOneDirectionOnly) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    const int64_t n = 100'003;
    const int last = world.size() - 1;
    Values<int32_t> out(n, [](int64_t i) { return i; }), in(n);
    std::vector<PeerMessage> sends, receives;
    if (world.rank() == 0) sends.push_back({last, out.tensor()});
    if (world.rank() == last) receives.push_back({0, in.tensor()});
    group->exchange(sends, receives, kStream);
    if (world.rank() == last)
      expect_values(
          in, n, [](int64_t i) { return i; }, "exchange");
  });
}

TEST_P(CollectiveTest, BarrierWaitsForTheLastRank) {
  std::atomic<int> arrived{0};
  run_ranks(GetParam(), [&](World& world) {
    auto group = world_group(world);
    std::this_thread::sleep_for(std::chrono::milliseconds(20) * world.rank());
    ++arrived;
    group->barrier();
    EXPECT_EQ(arrived.load(), world.size());
  });
}

TEST_P(CollectiveTest, CountersTellCollectivesAndSentBytes) {
  run_ranks(GetParam(), [](World& world) {
    auto group = world_group(world);
    const int64_t num_peers = world.size() - 1;
    Values<float> in(10), out(10 * world.size());
    group->all_gather(out.tensor(), in.tensor(), kStream);
    EXPECT_EQ(group->counters().num_collectives, 1);
    EXPECT_EQ(group->counters().sent_bytes, 40 * num_peers);
    group->reduce_scatter_add(in.tensor(), out.tensor(), kStream);
    EXPECT_EQ(group->counters().sent_bytes, 80 * num_peers);
    group->all_gather(out.part(0, 0), in.part(0, 0), kStream);
    EXPECT_EQ(group->counters().num_collectives, 3);
    EXPECT_EQ(group->counters().sent_bytes, 80 * num_peers);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveTest, ::testing::Values(1, 2, 3, 4, 5));

// 2^24 swallows a 1 but not a 2: the order of the sum shows in the result.
TEST(SumOrder, IsRankOrderOnEveryMember) {
  run_ranks(4, [](World& world) {
    auto group = world_group(world);
    const float big = 16777216.0f;
    const float contributions[] = {1.0f, 1.0f, big, 1.0f};
    const float expected = ((1.0f + 1.0f) + big) + 1.0f;  // 2^24 + 4; from last to first it is 2^24
    for (const int64_t n : {int64_t{1}, int64_t{100}, int64_t{5000}}) {
      Values<float> data(n, [&](int64_t) { return contributions[world.rank()]; });
      group->all_reduce_sum(data.tensor(), kStream);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(data[i], expected) << "all_reduce of " << n;

      Values<float> parts(n * 4, [&](int64_t) { return contributions[world.rank()]; });
      Values<float> sum(n, [&](int64_t) { return -big; });
      group->reduce_scatter_add(sum.tensor(), parts.tensor(), kStream);
      // What was there comes first: added last it would make 4.
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(sum[i], (((-big + 1.0f) + 1.0f) + big) + 1.0f) << "reduce_scatter of " << n;
      }
    }
  });
}

TEST(SumOrder, KeepsNegativeZero) {
  run_ranks(3, [](World& world) {
    auto group = world_group(world);
    Values<float> data(2, [](int64_t) { return -0.0f; });
    group->all_reduce_sum(data.tensor(), kStream);
    EXPECT_TRUE(std::signbit(data[0]));
  });
}

TEST(Arguments, BrokenContractsAreInternalErrors) {
  run_ranks(2, [](World& world) {
    auto group = world_group(world);
    Values<float> two(2), three(3);
    Values<int32_t> integers(2);
    Values<Bfloat16> halves(2);
    EXPECT_THROW(group->all_gather(three.tensor(), two.tensor(), kStream), InternalError);
    EXPECT_THROW(group->reduce_scatter_add(two.tensor(), three.tensor(), kStream), InternalError);
    EXPECT_THROW(group->all_reduce_sum(integers.tensor(), kStream), InternalError);
    EXPECT_THROW(group->all_reduce_sum(halves.tensor(), kStream), InternalError);
    EXPECT_THROW(group->broadcast(two.tensor(), 2, kStream), InternalError);
    const PeerMessage stray{5, two.tensor()};
    EXPECT_THROW(group->exchange({&stray, 1}, {}, kStream), InternalError);
  });
}

// 2 x 2 mesh: rows {0,1}, {2,3}; columns {0,2}, {1,3}. Each rank makes and uses its groups in an
// order of its own.
TEST(SubGroups, OfAMeshDoNotMix) {
  run_ranks(4, [](World& world) {
    const int me = world.rank();
    const std::vector<int> row = {me / 2 * 2, me / 2 * 2 + 1};
    const std::vector<int> column = {me % 2, me % 2 + 2};
    std::shared_ptr<Communicator> row_group, column_group;
    if (me % 3 == 0) {
      row_group = world.make_group(row, "axis");
      column_group = world.make_group(column, "axis");
    } else {
      column_group = world.make_group(column, "axis");
      row_group = world.make_group(row, "axis");
    }
    EXPECT_EQ(row_group->rank(), me % 2);
    EXPECT_EQ(column_group->rank(), me / 2);
    const auto all_reduce = [&](Communicator& group, int64_t n) {
      Values<float> data(n, [&](int64_t) { return 1 << (4 * me); });
      group.all_reduce_sum(data.tensor(), kStream);
      return data[n - 1];
    };
    for (int round = 0; round < 20; ++round) {
      const int64_t n = 1 + 1000 * (round % 5);
      const auto row_sum = static_cast<float>((1 << (4 * row[0])) + (1 << (4 * row[1])));
      const auto column_sum = static_cast<float>((1 << (4 * column[0])) + (1 << (4 * column[1])));
      ASSERT_EQ(all_reduce(*row_group, n), row_sum);
      ASSERT_EQ(all_reduce(*column_group, n), column_sum);
    }
  });
}

TEST(SubGroups, TwoOfTheSameNameAndRanksAreDistinct) {
  run_ranks(2, [](World& world) {
    auto first = world.make_group({0, 1}, "twin");
    auto second = world.make_group({0, 1}, "twin");
    // Rank 0 posts a broadcast in one group and then the other; rank 1 receives through them in
    // turn.
    for (int32_t round = 0; round < 10; ++round) {
      Values<int32_t> a(1, [&](int64_t) { return world.rank() == 0 ? round : -1; });
      Values<int32_t> b(1, [&](int64_t) { return world.rank() == 0 ? 100 + round : -1; });
      first->broadcast(a.tensor(), 0, kStream);
      second->broadcast(b.tensor(), 0, kStream);
      ASSERT_EQ(a[0], round);
      ASSERT_EQ(b[0], 100 + round);
    }
  });
}

// All ranks draw the same sequence of collectives, each sleeps as it likes.
TEST(Soak, RandomCollectivesWithRandomPauses) {
  run_ranks(4, [](World& world) {
    auto all = world_group(world);
    const int me = world.rank();
    auto pair = world.make_group(me < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, "pair");
    std::mt19937 shared(1234), own(static_cast<unsigned>(me) + 1);
    for (int round = 0; round < 200; ++round) {
      if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 2000));
      const auto kind = shared() % 5;
      const auto n = static_cast<int64_t>(shared() % 5000);
      Communicator& group = shared() % 3 == 0 ? *pair : *all;
      const int base = &group == pair.get() ? me / 2 * 2 : 0;
      const auto sum_at = [&](int64_t i) {
        int64_t sum = 0;
        for (int member = 0; member < group.size(); ++member) sum += value_of(base + member, i);
        return sum;
      };
      Values<float> one(n, [&](int64_t i) { return value_of(me, i); });
      Values<float> many(n * group.size(), [&](int64_t i) { return value_of(me, i); });
      switch (kind) {
        case 0:
          group.all_gather(many.tensor(), one.tensor(), kStream);
          expect_values(
              many, n * group.size(),
              [&](int64_t i) { return value_of(base + static_cast<int>(i / n), i % n); },
              "all_gather");
          break;
        case 1:
          group.reduce_scatter_add(one.tensor(), many.tensor(), kStream);
          expect_values(
              one, n, [&](int64_t i) { return value_of(me, i) + sum_at(group.rank() * n + i); },
              "reduce_scatter");
          break;
        case 2:
          group.all_reduce_sum(one.tensor(), kStream);
          expect_values(one, n, sum_at, "all_reduce");
          break;
        case 3:
          group.broadcast(one.tensor(), round % group.size(), kStream);
          expect_values(
              one, n, [&](int64_t i) { return value_of(base + round % group.size(), i); },
              "broadcast");
          break;
        default:
          group.barrier();
      }
    }
  });
}

}  // namespace
}  // namespace grpo::parallel
