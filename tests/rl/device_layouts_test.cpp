// The policy update of several ranks with a GPU each, real or fake, against one of one rank:
// gathers and reduce-scatters run on a stream of their own, and injected delays show a missing
// wait.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/policy_fixture.h"

namespace grpo::rl {
namespace {

using testing::Delay;
using testing::Layout;
using testing::PolicyCase;
using testing::PolicyOutcome;
using testing::train_policy;

struct DeviceCase {
  Layout layout;
  DType dtype;
  bool odd;  // pads every shard
  Delay delay;
};

std::string case_name(const DeviceCase& c) {
  static const char* const kDelays[] = {"", "_late_communication", "_late_work"};
  return testing::layout_name(c.layout) + "_" + std::string(dtype_name(c.dtype)) +
         (c.odd ? "_odd" : "_even") + kDelays[static_cast<int>(c.delay)];
}

std::vector<DeviceCase> device_cases() {
  std::vector<DeviceCase> cases;
  for (const Layout& layout : std::vector<Layout>{{2, 1}, {1, 2}, {3, 1}, {2, 2}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
      for (const bool odd : {false, true}) {
        for (const Delay delay : {Delay::kNone, Delay::kCommunication, Delay::kWork}) {
          cases.push_back({layout, dtype, odd, delay});
        }
      }
    }
  }
  return cases;
}

class DeviceLayouts : public ::testing::TestWithParam<DeviceCase> {};

INSTANTIATE_TEST_SUITE_P(Cases, DeviceLayouts, ::testing::ValuesIn(device_cases()),
                         [](const auto& test) { return case_name(test.param); });

TEST_P(DeviceLayouts, LogprobsAndLossHaveTheBitsOfOneRank) {
  const DeviceCase& c = GetParam();
  if (!testing::has_device_for_ranks(c.layout.num_ranks())) {
    GTEST_SKIP() << "needs GRPO_TEST_DEVICE=cuda and " << c.layout.num_ranks() << " devices";
  }
  PolicyCase policy_case{.config = c.odd ? testing::odd_config() : testing::even_config(),
                         .sequences = {},
                         .signals = {}};
  policy_case.sequences =
      testing::make_rollout({{1, 0}, {1, 1}, {5, 7}, {3, 20}, {9, 1}, {2, 30}, {4, 12}},
                            policy_case.config.vocab_size, 11);
  policy_case.signals = testing::make_signals(policy_case.sequences, 8.0);
  policy_case.dtype = c.dtype;
  policy_case.num_updates = c.dtype == DType::kFloat32 ? 1 : 2;
  const PolicyOutcome reference = train_policy(policy_case, {1, 1});
  policy_case.delay = c.delay;
  const PolicyOutcome outcome = train_policy(policy_case, c.layout);
  EXPECT_EQ(outcome.initial_weights, reference.initial_weights);
  EXPECT_EQ(outcome.updates[0].logprobs, reference.updates[0].logprobs);
  EXPECT_EQ(outcome.updates[0].averages.loss, reference.updates[0].averages.loss);
  if (c.layout.dp == 1) {
    ASSERT_LE(c.layout.gtp_remat, policy_case.options.micro_batches.multiple);
    EXPECT_EQ(outcome.weights, reference.weights);
    for (size_t u = 0; u < outcome.updates.size(); ++u) {
      EXPECT_EQ(outcome.updates[u].grad_norm, reference.updates[u].grad_norm);
    }
  } else if (c.dtype == DType::kFloat32) {
    testing::expect_weight_parity(outcome, reference);
  }
  // A delay changes nothing at all.
  if (c.delay == Delay::kNone) return;
  policy_case.delay = Delay::kNone;
  const PolicyOutcome undelayed = train_policy(policy_case, c.layout);
  EXPECT_EQ(outcome.weights, undelayed.weights);
  for (size_t u = 0; u < outcome.updates.size(); ++u) {
    EXPECT_EQ(outcome.updates[u].logprobs, undelayed.updates[u].logprobs);
    EXPECT_EQ(outcome.updates[u].grad_norm, undelayed.updates[u].grad_norm);
  }
}

}  // namespace
}  // namespace grpo::rl
