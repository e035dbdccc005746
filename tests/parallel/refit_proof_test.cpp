// What goes wrong on the way is noticed: fingerprints, interference, staging; ranks as threads.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>

#include "tests/parallel/refit_fixture.h"

namespace grpo::parallel {
namespace {

// R15: each check of the refit sees what it is for. The sides are float32.

// Changes the first stored row of an output projection.
void change_row(ShardedParameterStore& store) {
  for (size_t i = 0; i < store.specs().size(); ++i) {
    if (store.specs()[i].name != "layers.1.o.weight") continue;
    const Tensor row = store.shard(static_cast<ParameterId>(i)).rows(0, 1);
    std::vector<float> values = to_host<float>(row);
    for (float& value : values) value += 1.0f;
    copy_from_host<float>(row, values);
  }
  store.mark_weights_changed();
}

TEST_F(RefitTest, ARowChangedBeforeRefitChangesTheFingerprint) {
  run_ranks(2, [](World& world) {
    RefitRank rank(world, {});
    fill_coded(rank.policy, make_code(rank.policy.specs()));
    const RefitReport before = rank.refit();
    if (world.rank() == 1) change_row(rank.policy);
    const RefitReport after = rank.refit();
    CHECK(after.fingerprint_ok() && after.changed_elements == 48);
    CHECK(after.destination_fingerprint != before.destination_fingerprint);
  });
}

// Two rows that change places keep every sum over values; the fingerprint knows the places.
TEST_F(RefitTest, SwappedRowsChangeTheFingerprint) {
  run_ranks(2, [](World& world) {
    RefitRank rank(world, {});
    const Code code = make_code(rank.policy.specs());
    fill_coded(rank.policy, code);
    const RefitReport before = rank.refit();
    fill_coded(rank.policy, [&](const std::string& tensor, int64_t row, int64_t col) {
      const bool swapped = tensor == "model.embed_tokens.weight" && row < 2;
      return code(tensor, swapped ? 1 - row : row, col);
    });
    const RefitReport after = rank.refit();
    CHECK(after.fingerprint_ok());
    CHECK(after.destination_fingerprint != before.destination_fingerprint);
  });
}

TEST_F(RefitTest, ReplicasThatDisagreeAreNoticed) {
  for (const int gtp : {1, 2}) {
    std::atomic<int> num_mismatches{0};
    run_ranks(2 * gtp, [&](World& world) {
      RefitRank rank(world, {.gtp = gtp, .dp = 2});
      fill_coded(rank.policy, make_code(rank.policy.specs()));
      if (world.rank() + 1 == world.size()) change_row(rank.policy);
      num_mismatches += rank.refit().fingerprint_ok() ? 0 : 1;
    });
    EXPECT_GT(num_mismatches, 0) << "gtp " << gtp;
  }
}

// A world group that lets a test interfere with a refit under way.
class InterferingCommunicator : public Communicator {
 public:
  explicit InterferingCommunicator(Communicator& inner) : inner_(inner) {}

  std::function<void()> before_sum = [] {};
  std::function<void(std::span<const PeerMessage>)> after_receive = [](auto) {};

  const std::string& name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_gather(const Tensor& out, const Tensor& in, Stream stream) override {
    inner_.all_gather(out, in, stream);
  }
  void reduce_scatter_add(const Tensor& into, const Tensor& in, Stream stream) override {
    inner_.reduce_scatter_add(into, in, stream);
  }
  void all_reduce_sum(const Tensor& data, Stream stream) override {
    before_sum();
    inner_.all_reduce_sum(data, stream);
  }
  void broadcast(const Tensor& data, int root, Stream stream) override {
    inner_.broadcast(data, root, stream);
  }
  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                Stream stream) override {
    inner_.exchange(sends, receives, stream);
    after_receive(receives);
  }
  void barrier() override { inner_.barrier(); }
  const CommCounters& counters() const override { return inner_.counters(); }

 private:
  Communicator& inner_;
};

void change_byte(const Tensor& data) {
  const Tensor first(data.raw(), DType::kUint8, {1}, data.device());
  std::vector<uint8_t> byte = to_host<uint8_t>(first);
  byte[0] ^= 1;
  copy_from_host<uint8_t>(first, byte);
}

// The fingerprint is of the destination's memory, not of what was meant to arrive there.
TEST_F(RefitTest, ADestinationRowChangedAfterTheTransferIsNoticed) {
  std::vector<int> ok(2, -1);
  run_ranks(2, [&](World& world) {
    RefitRank rank(world, {});
    fill_coded(rank.policy, make_code(rank.policy.specs()));
    InterferingCommunicator group(rank.world());
    if (world.rank() == 0) group.before_sum = [&] { change_row(rank.generation); };
    ok[static_cast<size_t>(world.rank())] =
        parallel::refit(rank.plan, rank.policy, rank.generation, group).fingerprint_ok() ? 1 : 0;
  });
  EXPECT_EQ(ok, (std::vector<int>{0, 1}));
}

TEST_F(RefitTest, AByteChangedOnTheWayIsNoticed) {
  std::vector<int> ok(2, -1);
  run_ranks(2, [&](World& world) {
    RefitRank rank(world, {});
    fill_coded(rank.policy, make_code(rank.policy.specs()));
    InterferingCommunicator group(rank.world());
    if (world.rank() == 1) {
      group.after_receive = [](std::span<const PeerMessage> receives) {
        for (const PeerMessage& message : receives) change_byte(message.data);
      };
    }
    ok[static_cast<size_t>(world.rank())] =
        parallel::refit(rank.plan, rank.policy, rank.generation, group).fingerprint_ok() ? 1 : 0;
  });
  EXPECT_EQ(ok, (std::vector<int>{1, 0}));
}

class MeasuringCommunicator : public InterferingCommunicator {
 public:
  MeasuringCommunicator(Communicator& inner, int64_t bucket_bytes)
      : InterferingCommunicator(inner), bucket_bytes_(bucket_bytes) {}

  void exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                Stream stream) override {
    int64_t staged = 0;
    for (const auto& messages : {sends, receives}) {
      for (const PeerMessage& m : messages) staged += static_cast<int64_t>(m.data.size_bytes());
    }
    CHECK(staged <= bucket_bytes_, "{} bytes staged", staged);
    total_bytes += staged;
    InterferingCommunicator::exchange(sends, receives, stream);
  }

  int64_t total_bytes = 0;

 private:
  int64_t bucket_bytes_;
};

// R13: what a rank holds in messages never exceeds the bucket.
TEST_F(RefitTest, MessagesOfAWindowFitTheBucket) {
  constexpr int64_t kBucket = 8000;
  for (const int gtp : {2, 4}) {
    RefitSetup setup{.gtp = gtp};
    setup.options.bucket_bytes = kBucket;
    run_ranks(gtp, [&](World& world) {
      RefitRank rank(world, setup);
      const Code code = make_code(rank.policy.specs());
      fill_coded(rank.policy, code);
      MeasuringCommunicator group(rank.world(), kBucket);
      CHECK(parallel::refit(rank.plan, rank.policy, rank.generation, group).fingerprint_ok());
      CHECK(group.total_bytes > 10 * kBucket);
      CHECK(count_wrong(rank.generation, code) == 0);
    });
  }
}

}  // namespace
}  // namespace grpo::parallel
