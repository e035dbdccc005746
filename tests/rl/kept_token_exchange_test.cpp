// Which rank holds which sets of kept tokens after their delivery; ranks as threads.
#include "rl/loop/kept_token_exchange.h"

#include <gtest/gtest.h>

#include <mutex>

#include "parallel/layout/process_groups.h"
#include "rl/loop/sequence_scorer.h"
#include "tests/model_fixture.h"
#include "tests/run_ranks.h"

namespace grpo::rl {
namespace {

using testing::RankContext;
using testing::run_ranks;

// Different for every sequence; by id, by a threshold, or both.
ops::KeptTokens kept_of(size_t sequence, int64_t num_rows) {
  ops::KeptTokens kept;
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto first = static_cast<uint32_t>(100 * sequence) + static_cast<uint32_t>(row);
    if (sequence % 3 == 2 || (sequence % 3 == 1 && row % 2 == 1)) {
      kept.append_threshold({-0.5 - static_cast<double>(first), static_cast<int32_t>(first)});
    } else {
      std::vector<uint32_t> ids;
      for (uint32_t i = 0; i <= static_cast<uint32_t>(row) % 5; ++i) ids.push_back(first + 7 * i);
      kept.append_ids(ids);
    }
  }
  return kept;
}

// Every fifth has none: no filter was on. Every seventh has no response.
std::vector<RolloutSequence> make_sequences(size_t count, int num_ranks) {
  std::vector<RolloutSequence> sequences(count);
  for (size_t i = 0; i < count; ++i) {
    RolloutSequence& sequence = sequences[i];
    sequence.group = static_cast<int64_t>(i);
    sequence.prompt_tokens = {1, 2};
    const size_t length = i % 7 == 6 ? 0 : 1 + (5 * i) % 11;
    sequence.response_tokens.assign(length, 3);
    if (i % 5 == 4 || length == 0) continue;
    sequence.kept = kept_of(i, static_cast<int64_t>(length));
    sequence.kept_source = {.rank = static_cast<int>(i * static_cast<size_t>(num_ranks) / count),
                            .has_thresholds = sequence.kept.has_thresholds(),
                            .num_ids = sequence.kept.num_ids()};
  }
  return sequences;
}

// As after a rollout: on the rank that drew them alone.
void keep_own(std::vector<RolloutSequence>& sequences, int rank) {
  for (RolloutSequence& sequence : sequences) {
    if (sequence.kept_source.rank != rank) sequence.kept.clear();
  }
}

using Assignment = std::vector<std::vector<MicroBatch>>;

// Sequence i to rank (multiplier * i + shift) % ranks, in two micro-batches each.
Assignment assign(size_t count, int num_ranks, size_t multiplier, size_t shift) {
  const auto ranks = static_cast<size_t>(num_ranks);
  Assignment assigned(ranks, std::vector<MicroBatch>(2));
  for (size_t i = 0; i < count; ++i) {
    assigned[(multiplier * i + shift) % ranks][i % 3 == 0 ? 1 : 0].push_back(i);
  }
  return assigned;
}

bool is_assigned(const Assignment& assigned, int rank, size_t sequence) {
  for (const MicroBatch& micro_batch : assigned[static_cast<size_t>(rank)]) {
    if (std::find(micro_batch.begin(), micro_batch.end(), sequence) != micro_batch.end())
      return true;
  }
  return false;
}

int64_t bytes_of(const RolloutSequence& sequence) {
  return ops::KeptTokens::packed_bytes(sequence.kept.num_rows(), sequence.kept.num_ids(),
                                       sequence.kept.has_thresholds());
}

class KeptTokenExchange : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, KeptTokenExchange, ::testing::Values(1, 2, 3, 4));

TEST_P(KeptTokenExchange, SetsGoToTheRanksThatWorkOnThem) {
  constexpr size_t kCount = 23;
  const int num_ranks = GetParam();
  const std::vector<RolloutSequence> all = make_sequences(kCount, num_ranks);
  const std::vector<Assignment> assignments = {
      assign(kCount, num_ranks, 1, 0), assign(kCount, num_ranks, 7, 1),
      assign(kCount, num_ranks, 0, 0),  // all to one rank
  };
  for (const Assignment& assigned : assignments) {
    std::mutex mutex;
    int64_t sent_by_all = 0;
    run_ranks(num_ranks, [&](parallel::World& world) {
      const auto groups = parallel::make_generation_groups(world);
      Communicator& data = groups.world.communicator();
      std::vector<RolloutSequence> sequences = all;
      keep_own(sequences, data.rank());
      const int64_t sent_before = data.counters().sent_bytes;
      deliver_kept_tokens(sequences, assigned, data);
      const int64_t sent = data.counters().sent_bytes - sent_before;

      int64_t expected_sent = 0;
      for (size_t i = 0; i < kCount; ++i) {
        const bool is_source = all[i].kept_source.rank == data.rank();
        const bool is_mine = is_assigned(assigned, data.rank(), i);
        if (is_source || is_mine) {
          EXPECT_EQ(sequences[i].kept, all[i].kept) << "sequence " << i;
        } else {
          EXPECT_TRUE(sequences[i].kept.empty()) << "sequence " << i;
        }
        if (is_source && !is_mine) expected_sent += bytes_of(all[i]);
      }
      // Nothing but the sets of sequences that others work on.
      EXPECT_EQ(sent, expected_sent);
      const std::lock_guard lock(mutex);
      sent_by_all += sent;
    });
    EXPECT_EQ(sent_by_all > 0, num_ranks > 1);
  }
}

// A scoring pass and an update deal differently: the sets go out again from where they were drawn.
TEST_P(KeptTokenExchange, ASecondDeliveryFollowsAnotherDeal) {
  constexpr size_t kCount = 12;
  const int num_ranks = GetParam();
  const std::vector<RolloutSequence> all = make_sequences(kCount, num_ranks);
  run_ranks(num_ranks, [&](parallel::World& world) {
    const auto groups = parallel::make_generation_groups(world);
    Communicator& data = groups.world.communicator();
    std::vector<RolloutSequence> sequences = all;
    keep_own(sequences, data.rank());
    for (const size_t shift : {0, 1, 2}) {
      const Assignment assigned = assign(kCount, num_ranks, 5, shift);
      deliver_kept_tokens(sequences, assigned, data);
      for (size_t i = 0; i < kCount; ++i) {
        if (!is_assigned(assigned, data.rank(), i)) continue;
        EXPECT_EQ(sequences[i].kept, all[i].kept) << "sequence " << i << " shift " << shift;
      }
    }
  });
}

// Sets that are elsewhere are an error, not "everything is kept".
TEST(KeptTokenDelivery, ASequenceWithoutItsSetsIsNotPacked) {
  RankContext rank;
  std::vector<RolloutSequence> sequences = make_sequences(3, 2);
  EXPECT_NO_THROW(pack_rollout({&sequences[0]}, true, rank.allocator));
  const auto packed = pack_rollout({&sequences[1], &sequences[2]}, true, rank.allocator);
  ASSERT_EQ(packed.kept.num_rows(), packed.num_predicted());
  ops::KeptTokens expected = sequences[1].kept;
  expected.append(sequences[2].kept.view());
  EXPECT_EQ(packed.kept, expected);
  sequences[1].kept.clear();
  EXPECT_THROW(pack_rollout({&sequences[1]}, true, rank.allocator), InternalError);
  EXPECT_TRUE(pack_rollout({&sequences[1]}, false, rank.allocator).kept.empty());
}

}  // namespace
}  // namespace grpo::rl
