#include "tests/policy_fixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <optional>

#include "model/core/counter_rng.h"
#include "rl/work_division.h"

namespace grpo::testing {

std::string layout_name(const Layout& layout) {
  return fmt::format("gtp{}_dp{}", layout.gtp_remat, layout.dp);
}

std::vector<rl::RolloutSequence> make_rollout(const std::vector<SequenceLengths>& lengths,
                                              int64_t vocab_size, uint64_t seed) {
  std::vector<rl::RolloutSequence> sequences;
  for (size_t s = 0; s < lengths.size(); ++s) {
    rl::RolloutSequence sequence{};
    sequence.group = static_cast<int64_t>(s / 2);
    sequence.sample = static_cast<int32_t>(s % 2);
    sequence.reward = static_cast<double>(s % 2);
    sequence.finish_reason = generation::FinishReason::kLength;
    const auto draw = [&](int64_t i) {
      return uniform_at(seed, 1, static_cast<uint64_t>(s), static_cast<uint64_t>(i));
    };
    for (int64_t i = 0; i < lengths[s].prompt + lengths[s].response; ++i) {
      auto& tokens = i < lengths[s].prompt ? sequence.prompt_tokens : sequence.response_tokens;
      tokens.push_back(static_cast<int32_t>(draw(i) * static_cast<double>(vocab_size)));
    }
    for (int64_t i = 0; i < lengths[s].response; ++i) {
      sequence.generation_logprobs.push_back(static_cast<float>(-4.5 - draw(1000 + i)));
    }
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

std::vector<rl::SequenceSignals> make_signals(const std::vector<rl::RolloutSequence>& sequences,
                                              double scale) {
  std::vector<rl::SequenceSignals> signals;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const double sign = s % 3 == 1 ? -1.0 : 1.0;
    signals.push_back({.advantage = sign * scale * (1.0 + 0.25 * static_cast<double>(s)),
                       .previous_logprobs = {},
                       .reference_logprobs = {}});
  }
  return signals;
}

rl::OptimizerConfig plain_sgd() {
  rl::OptimizerConfig config;
  config.name = "sgd";
  config.kwargs.weight_decay = 0.0;
  return config;
}

rl::LossConfig actor_loss() {
  rl::LossConfig config;
  config.reference_policy_kl_penalty = 0.0;
  return config;
}

parallel::GtpCounters expected_counters(const parallel::ShardedParameterStore& store,
                                        const UseSchedule& schedule, int64_t num_passes) {
  parallel::GtpCounters counters;
  if (store.groups().gtp_remat.size() == 1) return counters;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    if (store.specs()[i].gtp == GtpPlacement::kReplicated) continue;
    const int64_t elements = store.layout(id).padded_rows * store.layout(id).cols;
    const int64_t reads = num_passes * schedule.num_reads(id);
    const int64_t scatters = schedule.num_contributions(id) > 0 ? num_passes : 0;
    counters.gathers += reads;
    counters.gathered_bytes += reads * elements * static_cast<int64_t>(dtype_size_bytes(store.dtype()));
    counters.reduce_scatters += scatters;
    counters.reduce_scattered_bytes += scatters * elements * static_cast<int64_t>(sizeof(float));
  }
  return counters;
}

void expect_counters(const parallel::GtpCounters& actual, const parallel::GtpCounters& expected) {
  EXPECT_EQ(actual.gathers, expected.gathers);
  EXPECT_EQ(actual.gathered_bytes, expected.gathered_bytes);
  EXPECT_EQ(actual.reduce_scatters, expected.reduce_scatters);
  EXPECT_EQ(actual.reduce_scattered_bytes, expected.reduce_scattered_bytes);
}

namespace {

PolicyOutcome train_on_rank(const PolicyCase& policy_case, const Layout& layout, parallel::World& world) {
  RankContext rank;
  rank.allocator.set_poison_scratch(true);
  TestModel model(rank, policy_case.config,
                  parallel::make_training_groups(world, parallel::Mesh(1, layout.gtp_remat, layout.dp), 16),
                  policy_case.dtype);
  policy_case.fill(model.store);
  const auto weights = [&] {
    return gather_logical(model.store, [&](ParameterId id) { return model.store.shard(id); });
  };
  PolicyOutcome outcome{.initial_weights = weights(), .weights = {}, .updates = {}, .counters = {}};
  rl::Optimizer optimizer(policy_case.optimizer, model.store, rank.allocator);
  for (int update = 0; update < policy_case.num_updates; ++update) {
    outcome.updates.push_back(rl::update_policy(policy_case.loss, model.transformer, model.store, optimizer,
                                                policy_case.sequences, policy_case.signals,
                                                policy_case.options, rank.ctx));
  }
  outcome.weights = weights();
  outcome.counters = model.store.counters();
  std::vector<int64_t> lengths;
  for (const auto& sequence : policy_case.sequences) lengths.push_back(sequence.length());
  const auto passes = static_cast<int64_t>(
      rl::deal_micro_batches(lengths, layout.num_ranks(), policy_case.options.max_tokens)[0].size());
  const UseSchedule& schedule = model.transformer.train_schedule(policy_case.loss.is_token_local());
  expect_counters(outcome.counters,
                  expected_counters(model.store, schedule, passes * policy_case.num_updates));
  if (layout.gtp_remat > 1) {
    EXPECT_GT(outcome.counters.gathers, 0);
    EXPECT_GT(outcome.counters.reduce_scatters, 0);
  }
  return outcome;
}

void expect_same(const PolicyOutcome& a, const PolicyOutcome& b) {
  EXPECT_EQ(a.weights, b.weights) << "ranks ended with different weights";
  EXPECT_EQ(a.initial_weights, b.initial_weights);
  for (size_t u = 0; u < a.updates.size(); ++u) {
    EXPECT_EQ(a.updates[u].logprobs, b.updates[u].logprobs);
    EXPECT_EQ(a.updates[u].averages.loss, b.updates[u].averages.loss);
    EXPECT_EQ(a.updates[u].grad_norm, b.updates[u].grad_norm);
  }
}

}  // namespace

PolicyOutcome train_policy(const PolicyCase& policy_case, const Layout& layout) {
  std::mutex mutex;
  std::optional<PolicyOutcome> first;
  run_ranks(layout.num_ranks(), [&](parallel::World& world) {
    PolicyOutcome outcome = train_on_rank(policy_case, layout, world);
    const std::lock_guard lock(mutex);
    if (first) {
      expect_same(outcome, *first);
    } else {
      first = std::move(outcome);
    }
  });
  return std::move(*first);
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

double difference_norm(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

void expect_weight_parity(const PolicyOutcome& layout, const PolicyOutcome& reference, double tolerance) {
  double update = 0;
  double size = 0;
  for (size_t i = 0; i < reference.weights.size(); ++i) {
    update = std::hypot(update, difference_norm(reference.weights[i].second,
                                                reference.initial_weights[i].second));
    size = std::hypot(size, norm(reference.initial_weights[i].second));
  }
  EXPECT_GE(update, 1e-2 * size) << "the update is too small to say anything";
  EXPECT_EQ(layout.initial_weights, reference.initial_weights);
  for (size_t i = 0; i < reference.weights.size(); ++i) {
    const auto& [name, expected] = reference.weights[i];
    ASSERT_EQ(layout.weights[i].first, name);
    const std::vector<float>& start = reference.initial_weights[i].second;
    const double moved = difference_norm(expected, start);
    const double bound = tolerance * std::max(moved, 1e-3 * update);
    // Not LE: a NaN must fail.
    EXPECT_TRUE(difference_norm(layout.weights[i].second, expected) <= bound)
        << name << ": differs by " << difference_norm(layout.weights[i].second, expected) << ", allowed "
        << bound << "; ratio of the updates " << difference_norm(layout.weights[i].second, start) / moved;
  }
}

}  // namespace grpo::testing
