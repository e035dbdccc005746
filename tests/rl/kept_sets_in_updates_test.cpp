// N1: with top-k and top-p on, every update of a rollout is over the sets that generation kept, so
// that ratios tell of the weights alone and not of tokens that cross a border.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rl/loop/policy_update.h"
#include "rl/loop/sequence_scorer.h"
#include "tests/generation/engine_fixture.h"
#include "tests/policy_fixture.h"
#include "tests/rl/trained_model.h"

namespace grpo::rl {
namespace {

using generation::Completion;
using generation::Draws;
using generation::EngineRank;

// Float64 log-probability of a token over a set; logits of one row.
double frozen_logprob(std::span<const float> logits, const std::vector<uint32_t>& ids,
                      int32_t token, double inv_temperature) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const uint32_t id : ids) largest = std::max(largest, double{logits[id]} * inv_temperature);
  double sum = 0.0;
  for (const uint32_t id : ids) sum += std::exp(double{logits[id]} * inv_temperature - largest);
  return double{logits[static_cast<size_t>(token)]} * inv_temperature - largest - std::log(sum);
}

// What a row's threshold keeps of these logits and the token drawn from it, by its definition.
std::vector<uint32_t> above(const ops::KeptThreshold& threshold, std::span<const float> logits,
                            int32_t token, double inv_temperature) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit} * inv_temperature);
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < logits.size(); ++id) {
    const double relative = double{logits[id]} * inv_temperature - std::log(sum);
    if (relative > threshold.above || id == static_cast<uint32_t>(token)) ids.push_back(id);
  }
  return ids;
}

// A rollout on one rank and four updates of it, beside their recomputation.
class FrozenSets {
 public:
  explicit FrozenSets(const Draws& draws)
      : rank_(testing::odd_config(false)),
        params_(draws),
        inv_temperature_(params_.filter.inv_temperature()) {
    const auto requests = generation::make_requests(3);
    for (const Completion& completion : rank_.generate(requests, draws)) {
      RolloutSequence sequence{};
      sequence.group = completion.tag;
      sequence.sample = completion.sample_index;
      sequence.prompt_tokens = requests[static_cast<size_t>(completion.tag)].prompt_tokens;
      sequence.response_tokens = completion.tokens;
      sequence.generation_logprobs = completion.logprobs;
      sequence.kept = completion.kept;
      sequence.kept_source = {.rank = 0,
                              .has_thresholds = sequence.kept.has_thresholds(),
                              .num_ids = sequence.kept.num_ids()};
      sequences_.push_back(std::move(sequence));
    }
    // The sets by id, however they were stored.
    Draws by_id = draws;
    by_id.max_kept_ids = 4096;
    for (const Completion& completion : rank_.generate(requests, by_id)) {
      drawn_from_.push_back(completion.kept);
    }
  }

  void run() {
    const SequenceLogprobs previous =
        score_sequences(model().transformer, model().store.groups(), sequences_,
                        {.inv_temperature = inv_temperature_,
                         .max_tokens = 64,
                         .applies_filter = true,
                         .filter_check = nullptr},
                        rank_.memory.ctx);
    std::vector<SequenceSignals> signals = testing::make_signals(sequences_, 1.0);
    for (size_t s = 0; s < sequences_.size(); ++s) {
      EXPECT_EQ(previous.processed[s], sequences_[s].generation_logprobs);
      signals[s].previous_logprobs = previous.processed[s];
    }
    const Recomputed before = recompute();
    OptimizerConfig adamw;
    adamw.kwargs.weight_decay = 0.0;
    Optimizer optimizer(adamw, model().store, rank_.memory.allocator);
    for (int update = 0; update < 4; ++update) {
      const Recomputed now = recompute();
      const UpdateResult result = update_policy(testing::actor_loss(), model().transformer,
                                                model().store, optimizer, sequences_, signals,
                                                {.inv_temperature = inv_temperature_,
                                                 .micro_batches = {.max_tokens = 64, .multiple = 1},
                                                 .learning_rate = 3e-3,
                                                 .max_grad_norm = 1.0,
                                                 .filter_check = nullptr},
                                                rank_.memory.ctx);
      for (size_t s = 0; s < sequences_.size(); ++s) {
        for (size_t i = 0; i < result.logprobs[s].size(); ++i) {
          compare(result.logprobs[s][i], previous.processed[s][i],
                  {now.stored[s][i], before.stored[s][i]}, {now.drawn[s][i], before.drawn[s][i]});
        }
      }
    }
  }

  double p99_of_movements() {
    std::sort(movements_.begin(), movements_.end());
    return movements_[movements_.size() * 99 / 100];
  }
  double largest_error = 0;         // against the stored sets
  double largest_frozen_error = 0;  // against the sets drawn from
  int64_t num_filtered = 0;         // rows whose set is not the vocabulary
  int64_t num_rows = 0;

 private:
  // By sequence and response token.
  struct Recomputed {
    std::vector<std::vector<double>> stored;  // over what the stored form keeps under these weights
    std::vector<std::vector<double>> drawn;   // over the ids that generation kept
  };
  struct Pair {
    double now, before;
    double ratio() const { return std::exp(now - before); }
  };

  testing::TestModel& model() { return rank_.model; }

  Recomputed recompute() {
    Recomputed result;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const RolloutSequence& sequence = sequences_[s];
      std::vector<int32_t> tokens = sequence.prompt_tokens;
      tokens.insert(tokens.end(), sequence.response_tokens.begin(), sequence.response_tokens.end());
      const std::vector<float> all = testing::logits_of(model(), tokens, rank_.memory.ctx);
      auto& stored = result.stored.emplace_back();
      auto& drawn = result.drawn.emplace_back();
      const auto vocabulary = static_cast<size_t>(model().config.vocab_size);
      for (size_t i = 0; i < sequence.response_tokens.size(); ++i) {
        const auto row = std::span(all).subspan(
            (sequence.prompt_tokens.size() + i - 1) * vocabulary, vocabulary);
        const int32_t token = sequence.response_tokens[i];
        const auto at = static_cast<int64_t>(i);
        const auto ids = drawn_from_[s].view().row_ids(at);
        const std::vector<uint32_t> frozen(ids.begin(), ids.end());
        const auto own_ids = sequence.kept.view().row_ids(at);
        const std::vector<uint32_t> own =
            own_ids.empty()
                ? above(sequence.kept.view().threshold(at), row, token, inv_temperature_)
                : std::vector<uint32_t>(own_ids.begin(), own_ids.end());
        drawn.push_back(frozen_logprob(row, frozen, token, inv_temperature_));
        stored.push_back(frozen_logprob(row, own, token, inv_temperature_));
        num_filtered += frozen.size() < vocabulary ? 1 : 0;
        ++num_rows;
      }
    }
    return result;
  }

  void compare(float logprob, float previous, const Pair& stored, const Pair& drawn) {
    const double ratio = std::exp(double{logprob} - double{previous});
    movements_.push_back(std::abs(ratio - 1.0));
    largest_error = std::max(largest_error, std::abs(ratio - stored.ratio()));
    largest_frozen_error = std::max(largest_frozen_error, std::abs(ratio - drawn.ratio()));
  }

  EngineRank rank_;
  generation::SamplingParams params_;
  float inv_temperature_;
  std::vector<RolloutSequence> sequences_;
  std::vector<ops::KeptTokens> drawn_from_;
  std::vector<double> movements_;  // |ratio - 1|
};

const Draws kFilters[] = {
    {.top_p = 0.9}, {.top_k = 4}, {.temperature = 0.7, .top_k = 20, .top_p = 0.9}};

TEST(KeptSetsInUpdates, N1_RatiosAreThoseOfTheFrozenSets) {
  for (const Draws& draws : kFilters) {
    SCOPED_TRACE(fmt::format("top_k {} top_p {}", draws.top_k, draws.top_p));
    FrozenSets sets(draws);
    sets.run();
    EXPECT_GE(sets.p99_of_movements(), 1e-3);
    EXPECT_LE(sets.largest_frozen_error, 1e-5);
    EXPECT_EQ(sets.largest_error, sets.largest_frozen_error);
    EXPECT_EQ(sets.num_filtered, sets.num_rows);
  }
}

// A threshold lets tokens in and out as the weights move, by its definition and no further.
TEST(KeptSetsInUpdates, N1_RatiosAreThoseOfTheStoredThresholds) {
  for (Draws draws : kFilters) {
    SCOPED_TRACE(fmt::format("top_k {} top_p {}", draws.top_k, draws.top_p));
    draws.max_kept_ids = 0;
    FrozenSets sets(draws);
    sets.run();
    EXPECT_GE(sets.p99_of_movements(), 1e-3);
    EXPECT_LE(sets.largest_error, 1e-5);
    EXPECT_GT(sets.largest_frozen_error, 1e-5);
    RecordProperty(fmt::format("frozen_error_top_k_{}", draws.top_k),
                   std::to_string(sets.largest_frozen_error));
  }
}

struct Filter {
  int64_t top_k;
  double top_p;
  int64_t max_kept_ids;
};

class KeptSetsInRuns : public ::testing::TestWithParam<Filter> {};

INSTANTIATE_TEST_SUITE_P(Filters, KeptSetsInRuns,
                         ::testing::Values(Filter{0, 0.9, 256}, Filter{4, 1.0, 256},
                                           Filter{4, 0.9, 256}, Filter{0, 0.9, 0},
                                           Filter{4, 1.0, 0}, Filter{4, 0.9, 0}),
                         [](const auto& test) {
                           return fmt::format("top_k_{}_top_p_{}_ids_{}", test.param.top_k,
                                              100 * test.param.top_p, test.param.max_kept_ids);
                         });

// Weights that hardly move leave every ratio at 1.
TEST_P(KeptSetsInRuns, N1_TinyUpdatesClipNothing) {
  RunConfig config = testing::trained_run_config();
  config.grpo.max_num_steps = 4;
  config.policy.optimizer.kwargs.lr = 1e-8;
  config.policy.train_global_batch_size = 8;  // four updates
  config.policy.generation.top_k = GetParam().top_k;
  config.policy.generation.top_p = GetParam().top_p;
  config.policy.generation.max_kept_ids = GetParam().max_kept_ids;
  const testing::RecordedRun run = testing::run_training(config);
  ASSERT_EQ(run.steps.size(), 4u);
  for (const auto& metrics : run.steps) {
    EXPECT_LT(metrics.at("train/probs_ratio_max"), 1.001);
    EXPECT_GT(metrics.at("train/probs_ratio_min"), 0.999);
    EXPECT_EQ(metrics.at("train/clip_ratio/low"), 0.0);
    EXPECT_EQ(metrics.at("train/clip_ratio/high"), 0.0);
    EXPECT_EQ(metrics.at("train/mismatch_count"), 0.0);
    EXPECT_EQ(metrics.at("train/cut_mismatch_count"), 0.0);
    EXPECT_GT(metrics.at("train/grad_norm"), 0.0);
  }
}

// Sums of generation in another order, 1e-7 apart: a filter adds nothing to the error.
TEST_P(KeptSetsInRuns, N1_NoiseOfTheLastDigitsStaysSmall) {
  RunConfig config = testing::trained_run_config();
  config.grpo.max_num_steps = 3;
  config.policy.generation.top_k = GetParam().top_k;
  config.policy.generation.top_p = GetParam().top_p;
  config.policy.generation.max_kept_ids = GetParam().max_kept_ids;
  config.policy.generation.ignore_eos = true;
  config.policy.generation.max_new_tokens = 24;
  config.policy.max_total_sequence_length = 32;
  config.numerics.inject_fault = "split_k";
  const testing::RecordedRun run = testing::run_training(config);
  ASSERT_EQ(run.steps.size(), 3u);
  for (const auto& metrics : run.steps) {
    EXPECT_GT(metrics.at("train/mismatch_count"), 0.0);
    EXPECT_LT(metrics.at("train/token_mult_prob_error"), 1.00001);
    // A set of other tokens is rare. Thresholds are compared by their digits, which noise changes.
    if (GetParam().max_kept_ids == 0) continue;
    EXPECT_LT(metrics.at("train/cut_mismatch_count"),
              0.01 * metrics.at("train/mismatch_tokens_checked"));
  }
}

}  // namespace
}  // namespace grpo::rl
