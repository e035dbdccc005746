// A policy trained on given rollout sequences under a layout of ranks, for comparing layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rl/loop/policy_update.h"
#include "tests/delayed_communicator.h"
#include "tests/model_fixture.h"
#include "tests/run_ranks.h"

namespace grpo::testing {

struct Layout {
  int gtp_remat;
  int dp;

  int num_ranks() const { return gtp_remat * dp; }
};

std::string layout_name(const Layout& layout);  // "gtp2_dp1"

// Name -> row-major logical values.
using NamedValues = std::vector<std::pair<std::string, std::vector<float>>>;

// Logical tensors put together from the shards of all thread ranks. Thread-safe.
class LogicalValues {
 public:
  explicit LogicalValues(const std::vector<ParameterSpec>& specs);

  // Writes what this rank holds; the test fails where another rank wrote other bits.
  void add(const parallel::ShardedParameterStore& store,
           const std::function<Tensor(ParameterId)>& source);
  // The reduced gradients of the elements this rank's optimizer owns.
  void add_owned_gradients(const parallel::ShardedParameterStore& store);
  // After all ranks; the test fails for an element that no rank wrote.
  NamedValues take();

 private:
  size_t place_of(const std::string& name) const;
  void write(size_t place, int64_t index, float value);

  std::mutex mutex_;
  NamedValues values_;
  std::vector<std::vector<bool>> is_written_;
};

struct SequenceLengths {
  int64_t prompt;
  int64_t response;
};

// Sequences of random tokens with plausible generation log-probabilities; rewards alternate 0
// and 1.
std::vector<rl::RolloutSequence> make_rollout(const std::vector<SequenceLengths>& lengths,
                                              int64_t vocab_size, uint64_t seed);

// Advantages of both signs of about `scale`; no stored log-probabilities.
std::vector<rl::SequenceSignals> make_signals(const std::vector<rl::RolloutSequence>& sequences,
                                              double scale);

// Plain SGD without weight decay.
rl::OptimizerConfig plain_sgd();
// The actor term alone: no KL.
rl::LossConfig actor_loss();

struct PolicyCase {
  model::ModelConfig config;
  std::vector<rl::RolloutSequence> sequences;  // their kept tokens start on one rank each
  std::vector<rl::SequenceSignals> signals;
  rl::LossConfig loss = actor_loss();
  rl::OptimizerConfig optimizer = plain_sgd();
  rl::UpdateOptions options{.inv_temperature = 1.0f,
                            .micro_batches = {.max_tokens = 64, .multiple = 4},
                            .learning_rate = 1.0,
                            .max_grad_norm = 0.0,
                            .filter_check = nullptr};
  int num_updates = 1;
  DType dtype = DType::kFloat32;
  Delay delay = Delay::kNone;
  std::function<void(parallel::ShardedParameterStore&)> fill =
      [](parallel::ShardedParameterStore& store) { fill_lively(store, 7); };
};

struct PolicyOutcome {
  NamedValues initial_weights;
  NamedValues weights;
  std::vector<rl::UpdateResult> updates;
  parallel::GtpCounters counters;  // of one rank
};

// Runs update_policy on every rank with poisoned scratch. All ranks must end with the same weights
// and results, and the store's counters must be those of the schedule (gathers above 0 when
// gtp_remat is above 1); else the test fails.
PolicyOutcome train_policy(const PolicyCase& policy_case, const Layout& layout);
// The same of one rank.
OneRank<PolicyOutcome> train_on_one_rank(const PolicyCase& policy_case);

// What `num_passes` runs of a schedule must add to a store's counters.
parallel::GtpCounters expected_counters(const parallel::ShardedParameterStore& store,
                                        const UseSchedule& schedule, int64_t num_passes);
void expect_counters(const parallel::GtpCounters& actual, const parallel::GtpCounters& expected);

double norm(const std::vector<float>& values);
double difference_norm(const std::vector<float>& a, const std::vector<float>& b);

// Per tensor: ||layout - reference|| <= 1e-5 max(||update of the tensor||, 1e-3 ||update of the
// model||); the update must be at least 1e-2 of the weights' norm, or the comparison would be with
// rounding errors.
void expect_weight_parity(const PolicyOutcome& layout, const PolicyOutcome& reference,
                          double tolerance = 1e-5);

}  // namespace grpo::testing
