#include "tests/policy_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "model/core/counter_rng.h"
#include "model/core/host_transfer.h"
#include "rl/data/work_division.h"

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
    const int64_t reads = num_passes * num_reads(schedule, id);
    const int64_t scatters = schedule.num_contributions(id) > 0 ? num_passes : 0;
    counters.gathers += reads;
    counters.gathered_bytes +=
        reads * elements * static_cast<int64_t>(dtype_size_bytes(store.dtype()));
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

LogicalValues::LogicalValues(const std::vector<ParameterSpec>& specs) {
  for (const ParameterSpec& spec : specs) {
    for (const LogicalTensor& part : spec.parts) {
      const auto size = static_cast<size_t>(part.rows * part.cols);
      values_.emplace_back(part.name, std::vector<float>(size));
      is_written_.emplace_back(size, false);
    }
  }
}

size_t LogicalValues::place_of(const std::string& name) const {
  size_t place = 0;
  while (values_.at(place).first != name) ++place;
  return place;
}

void LogicalValues::write(size_t place, int64_t index, float value) {
  auto& [name, values] = values_[place];
  float& held = values.at(static_cast<size_t>(index));
  const bool is_repeated = is_written_[place][static_cast<size_t>(index)];
  if (is_repeated && std::bit_cast<uint32_t>(held) != std::bit_cast<uint32_t>(value)) {
    // Thrown, so that one element is told of, not thousands.
    throw InternalError(fmt::format("ranks hold different values of {}, element {}: {} and {}",
                                    name, index, held, value));
  }
  held = value;
  is_written_[place][static_cast<size_t>(index)] = true;
}

void LogicalValues::add(const parallel::ShardedParameterStore& store,
                        const std::function<Tensor(ParameterId)>& source) {
  const std::lock_guard lock(mutex_);
  for_each_region(store, [&](ParameterId id, const LogicalTensor& part,
                             const parallel::ShardRegion& region, const Tensor&) {
    const size_t place = place_of(part.name);
    const HostCopy copy(source(id));
    const Tensor& tensor = copy.view();
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        const int64_t from = (region.stored_row + r) * region.num_cols + c;
        write(place, (region.logical_row + r) * part.cols + region.logical_col + c,
              tensor.dtype() == DType::kFloat32
                  ? tensor.data<float>()[from]
                  : static_cast<float>(tensor.data<Bfloat16>()[from]));
      }
    }
  });
}

void LogicalValues::add_owned_gradients(const parallel::ShardedParameterStore& store) {
  CHECK(store.groups().tp.size() == 1, "a span of a column cut wraps at the shard's width");
  const std::lock_guard lock(mutex_);
  for (const parallel::OwnedSpan& span : store.owned_spans()) {
    const LogicalTensor& part =
        store.specs()[static_cast<size_t>(span.parameter)].parts[static_cast<size_t>(span.part)];
    const size_t place = place_of(part.name);
    const int64_t first = span.logical_row * part.cols + span.logical_col;
    const std::vector<float> gradient = to_host<float>(span.gradient);
    for (size_t i = 0; i < gradient.size(); ++i) {
      write(place, first + static_cast<int64_t>(i), gradient[i]);
    }
  }
}

NamedValues LogicalValues::take() {
  for (size_t i = 0; i < values_.size(); ++i) {
    const auto missing = std::count(is_written_[i].begin(), is_written_[i].end(), false);
    EXPECT_EQ(missing, 0) << "elements of " << values_[i].first << " that no rank holds";
  }
  return std::move(values_);
}

namespace {

struct SharedValues {
  explicit SharedValues(const std::vector<ParameterSpec>& specs) : initial(specs), final(specs) {}
  LogicalValues initial;
  LogicalValues final;
};

// As after a rollout: the kept tokens of a sequence are on one rank, another for each.
std::vector<rl::RolloutSequence> spread_kept_tokens(std::vector<rl::RolloutSequence> sequences,
                                                    parallel::World& world) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    rl::RolloutSequence& sequence = sequences[s];
    if (sequence.kept.empty()) continue;
    sequence.kept_source = {.rank = static_cast<int>(s) % world.size(),
                            .has_thresholds = sequence.kept.has_thresholds(),
                            .num_ids = sequence.kept.num_ids()};
    if (sequence.kept_source.rank != world.rank()) sequence.kept.clear();
  }
  return sequences;
}

PolicyOutcome train_on_rank(const PolicyCase& policy_case, const Layout& layout,
                            parallel::World& world, SharedValues& shared) {
  RankContext rank(world);
  rank.allocator.set_poison_scratch(true);
  TestModel model(rank, policy_case.config,
                  delay(parallel::make_training_groups(
                            world, parallel::Mesh(1, layout.gtp_remat, layout.dp), 16),
                        policy_case.delay, rank.allocator),
                  policy_case.dtype);
  policy_case.fill(model.store);
  const auto weights = [&](ParameterId id) { return model.store.shard(id); };
  shared.initial.add(model.store, weights);
  std::vector<rl::RolloutSequence> sequences = spread_kept_tokens(policy_case.sequences, world);
  PolicyOutcome outcome{.initial_weights = {}, .weights = {}, .updates = {}, .counters = {}};
  rl::Optimizer optimizer(policy_case.optimizer, model.store, rank.allocator);
  for (int update = 0; update < policy_case.num_updates; ++update) {
    outcome.updates.push_back(rl::update_policy(policy_case.loss, model.transformer, model.store,
                                                optimizer, sequences, policy_case.signals,
                                                policy_case.options, rank.ctx));
  }
  shared.final.add(model.store, weights);
  outcome.counters = model.store.counters();
  std::vector<int64_t> lengths;
  for (const auto& sequence : policy_case.sequences) lengths.push_back(sequence.length());
  const auto passes = static_cast<int64_t>(
      rl::deal_micro_batches(lengths, {.gtp_remat = layout.gtp_remat, .dp = layout.dp},
                             policy_case.options.micro_batches)[0]
          .size());
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
  for (size_t u = 0; u < a.updates.size(); ++u) {
    EXPECT_EQ(a.updates[u].logprobs, b.updates[u].logprobs);
    EXPECT_EQ(a.updates[u].averages.loss, b.updates[u].averages.loss);
    EXPECT_EQ(a.updates[u].grad_norm, b.updates[u].grad_norm);
  }
}

// Where `num_device_ranks` ranks run.
PolicyOutcome train_policy(const PolicyCase& policy_case, const Layout& layout,
                           int num_device_ranks) {
  std::mutex mutex;
  std::optional<PolicyOutcome> first;
  SharedValues shared(model::make_transformer_parameters(policy_case.config, 0.0f).specs);
  run_ranks(layout.num_ranks(), [&](parallel::World& world) {
    set_rank_of_this_thread(world.rank(), num_device_ranks);
    PolicyOutcome outcome = train_on_rank(policy_case, layout, world, shared);
    const std::lock_guard lock(mutex);
    if (first) {
      expect_same(outcome, *first);
    } else {
      first = std::move(outcome);
    }
  });
  first->initial_weights = shared.initial.take();
  first->weights = shared.final.take();
  return std::move(*first);
}

}  // namespace

PolicyOutcome train_policy(const PolicyCase& policy_case, const Layout& layout) {
  return train_policy(policy_case, layout, layout.num_ranks());
}

OneRank<PolicyOutcome> train_on_one_rank(const PolicyCase& policy_case) {
  return OneRank<PolicyOutcome>([policy_case](int num_device_ranks) {
    return train_policy(policy_case, {1, 1}, num_device_ranks);
  });
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

void expect_weight_parity(const PolicyOutcome& layout, const PolicyOutcome& reference,
                          double tolerance) {
  double update = 0;
  double size = 0;
  for (size_t i = 0; i < reference.weights.size(); ++i) {
    update = std::hypot(
        update, difference_norm(reference.weights[i].second, reference.initial_weights[i].second));
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
        << name << ": differs by " << difference_norm(layout.weights[i].second, expected)
        << ", allowed " << bound << "; ratio of the updates "
        << difference_norm(layout.weights[i].second, start) / moved;
  }
}

}  // namespace grpo::testing
