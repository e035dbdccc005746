#include "rl/data/work_division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "model/core/counter_rng.h"
#include "model/core/errors.h"
#include "rl/config/resolve_config.h"
#include "rl/config/run_config.h"
#include "rl/objective/advantage.h"

namespace grpo::rl {
namespace {

using Lengths = std::vector<int64_t>;

const std::vector<DataRanks> kRanks = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {8, 1},
                                       {1, 2}, {2, 2}, {3, 2}, {1, 3}, {2, 4}};

// Every sequence once, no micro-batch over the limit, equal counts on all ranks.
void expect_dealt(const Lengths& lengths, const DataRanks& ranks, const MicroBatchRule& rule) {
  const auto dealt = deal_micro_batches(lengths, ranks, rule);
  ASSERT_EQ(dealt.size(), static_cast<size_t>(ranks.size()));
  std::vector<int> seen(lengths.size(), 0);
  const int64_t least = least_micro_batches(ranks, rule);
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const int64_t share = (static_cast<int64_t>(lengths.size()) + least - 1) / least;
  for (const std::vector<MicroBatch>& batches : dealt) {
    EXPECT_EQ(batches.size(), dealt[0].size());
    EXPECT_GE(batches.size(), 1u);
    for (const MicroBatch& batch : batches) {
      EXPECT_TRUE(std::is_sorted(batch.begin(), batch.end()));
      int64_t tokens = 0;
      for (const size_t index : batch) {
        ++seen.at(index);
        tokens += lengths[index];
      }
      EXPECT_LE(tokens, rule.max_tokens);
      EXPECT_LE(tokens, share * longest) << "more than the memory plan allows for";
    }
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
}

Lengths drawn_lengths(uint64_t draw) {
  Lengths lengths(static_cast<size_t>(1 + 40 * uniform_at(1, draw, 0, 0)));
  for (size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = 1 + static_cast<int64_t>(50 * uniform_at(1, draw, 1, i));
  }
  return lengths;
}

TEST(WorkDivision, N01_EveryRankRunsTheSameNumberOfPasses) {
  for (uint64_t draw = 0; draw < 50; ++draw) {
    const Lengths lengths = drawn_lengths(draw);
    for (const DataRanks& ranks : kRanks) {
      for (const int64_t max_tokens : {50, 64, 4096}) {
        for (const int64_t multiple : {1, 2, 3, 8}) {
          expect_dealt(lengths, ranks, {.max_tokens = max_tokens, .multiple = multiple});
        }
      }
    }
  }
}

// Pass by pass over the gtp_remat ranks of a replica, those without work left out.
std::vector<std::vector<MicroBatch>> order_of_passes(const Lengths& lengths, const DataRanks& ranks,
                                                     const MicroBatchRule& rule) {
  const auto dealt = deal_micro_batches(lengths, ranks, rule);
  std::vector<std::vector<MicroBatch>> of_replica(static_cast<size_t>(ranks.dp));
  for (size_t replica = 0; replica < of_replica.size(); ++replica) {
    for (size_t pass = 0; pass < dealt[0].size(); ++pass) {
      for (int peer = 0; peer < ranks.gtp_remat; ++peer) {
        const size_t rank =
            replica * static_cast<size_t>(ranks.gtp_remat) + static_cast<size_t>(peer);
        const MicroBatch& batch = dealt[rank][pass];
        if (!batch.empty()) of_replica[replica].push_back(batch);
      }
    }
  }
  return of_replica;
}

TEST(WorkDivision, GtpLeavesTheOrderOfMicroBatchesAlone) {
  for (uint64_t draw = 0; draw < 50; ++draw) {
    const Lengths lengths = drawn_lengths(draw);
    for (const int64_t max_tokens : {50, 64, 4096}) {
      for (const int64_t multiple : {2, 3, 4, 8}) {
        const MicroBatchRule rule{.max_tokens = max_tokens, .multiple = multiple};
        for (const int dp : {1, 2, 3}) {
          const auto reference = order_of_passes(lengths, {.gtp_remat = 1, .dp = dp}, rule);
          for (int gtp_remat = 2; gtp_remat <= multiple; ++gtp_remat) {
            EXPECT_EQ(order_of_passes(lengths, {.gtp_remat = gtp_remat, .dp = dp}, rule), reference)
                << gtp_remat << " of " << multiple << ", dp " << dp;
          }
        }
      }
    }
  }
}

TEST(WorkDivision, N01_RanksWithoutSequencesGetEmptyMicroBatches) {
  const MicroBatchRule rule{.max_tokens = 15, .multiple = 1};
  const auto dealt = deal_micro_batches(Lengths{10, 10, 10, 10, 10}, {2, 1}, rule);
  EXPECT_EQ(dealt[0], (std::vector<MicroBatch>{{0}, {2}, {4}}));
  EXPECT_EQ(dealt[1], (std::vector<MicroBatch>{{1}, {3}, {}}));
  const auto none = deal_micro_batches(Lengths{}, {2, 1}, rule);
  EXPECT_EQ(none[1], (std::vector<MicroBatch>{{}}));
}

TEST(WorkDivision, TokensAreBalancedOverRanks) {
  Lengths lengths;
  for (size_t i = 0; i < 64; ++i) lengths.push_back(20 + static_cast<int64_t>(i * 7 % 80));
  std::vector<int64_t> tokens;
  for (const auto& batches : deal_micro_batches(lengths, {4, 1}, {4096, 1})) {
    int64_t sum = 0;
    for (const MicroBatch& batch : batches) {
      for (const size_t index : batch) sum += lengths[index];
    }
    tokens.push_back(sum);
  }
  const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
  EXPECT_LE(*most - *least, 100);
}

TEST(WorkDivision, ASequenceThatFitsNowhereIsAnError) {
  EXPECT_THROW(deal_micro_batches(Lengths{10, 17}, {2, 1}, {16, 1}), InternalError);
  EXPECT_THROW(deal_micro_batches(Lengths{0}, {2, 1}, {16, 1}), InternalError);
}

// (1,2,2) with micro-batches of two and sixteen sequences: data is split over gtp_remat x dp.
TEST(WorkDivision, S02_SixteenSequencesOverFourDataRanksAreTwoMicroBatchesOfTwo) {
  const auto dealt = deal_micro_batches(Lengths(16, 100), {2, 2}, {200, 2});
  std::set<size_t> distinct;
  for (const auto& batches : dealt) {
    ASSERT_EQ(batches.size(), 2u);
    for (const MicroBatch& batch : batches) {
      EXPECT_EQ(batch.size(), 2u);
      distinct.insert(batch.begin(), batch.end());
    }
  }
  EXPECT_EQ(distinct.size(), 16u);
}

RunConfig sixteen_sequences() {
  RunConfig config;
  config.grpo.num_prompts_per_step = 4;
  config.grpo.num_generations_per_prompt = 4;
  config.env.rewards.emplace_back();
  config.parallel.gtp_remat = 2;
  return config;
}

std::string refusal(RunConfig config, int world_size) {
  try {
    resolve(config, world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(BatchArithmetic, S02_DataIsSplitOverGtpAndDp) {
  RunConfig config = sixteen_sequences();
  resolve(config, 4);
  EXPECT_EQ(config.parallel.data, 2);
  EXPECT_EQ(config.policy.train_global_batch_size, 16);
  EXPECT_EQ(batch_arithmetic(config, 4),
            "4 prompts x 4 samples = 16 sequences a step over 4 data ranks (gtp_remat 2 x data 2); "
            "1 update of 16 sequences a step; at least 4 micro-batches of at most 4096 tokens");
  config.policy.train_global_batch_size = 4;
  EXPECT_NE(batch_arithmetic(config, 4).find("; 4 updates of 4 sequences a step;"),
            std::string::npos);
}

TEST(BatchArithmetic, S02_ABatchThatDoesNotDivideIsRefusedWithTheNearestValues) {
  RunConfig config = sixteen_sequences();
  config.policy.train_global_batch_size = 6;
  const std::string message = refusal(config, 4);
  EXPECT_NE(message.find("policy.train_global_batch_size is 6"), std::string::npos) << message;
  EXPECT_NE(message.find("nearest legal values: 4 or 8"), std::string::npos) << message;
  config.policy.train_global_batch_size = 32;
  EXPECT_NE(refusal(config, 4).find("nearest legal values: 16"), std::string::npos);
  for (const int64_t legal : {1, 2, 4, 8, 16}) {
    config.policy.train_global_batch_size = legal;
    EXPECT_EQ(refusal(config, 4), "");
  }
}

TEST(BatchArithmetic, S02_AWorldThatDoesNotDivideIsRefusedWithTheNearestSizes) {
  RunConfig config = sixteen_sequences();
  EXPECT_NE(refusal(config, 5).find("nearest legal world sizes: 4 or 6"), std::string::npos)
      << refusal(config, 5);
  EXPECT_NE(refusal(config, 1).find("nearest legal world sizes: 2"), std::string::npos);
  config.parallel.data = 3;
  EXPECT_NE(refusal(config, 4).find("parallel.data is 3"), std::string::npos);
}

TEST(WorkDivision, S03_EverySampleOfEveryPromptBelongsToOneRank) {
  for (const int64_t total : {0, 1, 7, 8, 9, 32}) {
    for (const int num_ranks : {1, 2, 3, 4, 8}) {
      int64_t next = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const auto [begin, end] = contiguous_share(total, num_ranks, rank);
        EXPECT_EQ(begin, next);
        EXPECT_LE(end - begin, (total + num_ranks - 1) / num_ranks);  // nobody does another's work
        EXPECT_GE(end - begin, total / num_ranks);                    // nobody idles
        next = end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

// Three prompts of three samples on two ranks: the second group spans both, and advantages are
// taken over all of it.
TEST(WorkDivision, S03_AdvantagesOfAGroupThatSpansTwoRanksAreOfTheWholeGroup) {
  const std::vector<int64_t> groups = {0, 0, 0, 1, 1, 1, 2, 2, 2};
  const std::vector<double> rewards = {1, 0, 1, 4, 1, 0, 0, 0, 1};
  const auto [begin, end] = contiguous_share(9, 2, 0);
  ASSERT_GT(end, 3);
  ASSERT_LT(end, 6);
  const GroupAdvantages all = group_advantages(groups, rewards, true, false);
  EXPECT_DOUBLE_EQ(all.advantage[3], 3.5);
  const std::vector<double> own_rewards(rewards.begin() + begin, rewards.begin() + end);
  const std::vector<int64_t> own_groups(groups.begin() + begin, groups.begin() + end);
  // What a rank alone would make of its share is something else: the rollout is exchanged first.
  EXPECT_NE(group_advantages(own_groups, own_rewards, true, false).advantage[3], all.advantage[3]);
}

}  // namespace
}  // namespace grpo::rl
