// Refit follows all that was queued before it, however late it runs: writes of the weights, the
// optimizer's gather, collectives. Ranks as threads; on GPUs with injected delays.
#include <gtest/gtest.h>

#include "rl/models/optimizer.h"
#include "tests/parallel/refit_fixture.h"

namespace grpo::parallel {
namespace {

struct Axes {
  int gtp;
  int dp;
};

class RefitOrder : public RefitTest, public ::testing::WithParamInterface<Axes> {};

INSTANTIATE_TEST_SUITE_P(Layouts, RefitOrder, ::testing::Values(Axes{2, 1}, Axes{1, 2}, Axes{2, 2}),
                         [](const auto& test) {
                           return fmt::format("gtp{}_dp{}", test.param.gtp, test.param.dp);
                         });

RefitSetup setup_of(const Axes& axes, DType dtype = DType::kFloat32) {
  RefitSetup setup{.gtp = axes.gtp, .dp = axes.dp};
  setup.trained_dtype = setup.generated_dtype = dtype;
  return setup;
}

// Weights are written behind late work, and no host waits before the refit.
TEST_P(RefitOrder, R12_WeightsWrittenLateAreTheOnesThatArrive) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    on_ranks(setup_of(GetParam(), dtype), [](World& world, const RefitSetup& setup) {
      RefitRank rank(world, setup);
      const Code old_code = make_code(rank.policy.specs());
      const Code new_code = make_code(rank.policy.specs(), 40);
      fill_coded(rank.policy, new_code);
      LateWeights late(rank.policy);
      for (int round = 0; round < 3; ++round) {
        fill_coded(rank.policy, old_code);
        CHECK(rank.refit().fingerprint_ok());
        CHECK(count_wrong(rank.generation, old_code) == 0, "round {}", round);
        late.write();
        const RefitReport report = rank.refit();
        CHECK(report.fingerprint_ok());
        CHECK(report.changed_elements == num_elements(rank.generation.specs()));
        CHECK(count_wrong(rank.generation, new_code) == 0, "round {}", round);
      }
    });
  }
}

// What this rank's optimizer owns, of a code.
OwnedTensor owned_values(ShardedParameterStore& store, const Code& code) {
  OwnedTensor values(store.allocator(), "test", store.dtype(), {store.num_owned_elements()});
  HostDraft draft(values);
  for (const OwnedSpan& span : store.owned_spans()) {
    const ParameterSpec& spec = store.specs()[static_cast<size_t>(span.parameter)];
    const LogicalTensor& part = spec.parts[static_cast<size_t>(span.part)];
    for (int64_t i = 0; i < span.num_elements; ++i) {
      const int64_t place = span.logical_row * part.cols + span.logical_col + i;
      write_value(draft.view(), span.state_offset + i,
                  code(part.name, place / part.cols, place % part.cols));
    }
  }
  draft.commit();
  return values;
}

// Each dp replica's optimizer owns a part; refit follows the gather of the updated weights.
TEST_P(RefitOrder, R04_SendsWhatAllOptimizersWrote) {
  RefitSetup replicas = setup_of(GetParam());
  replicas.generated_dtype = DType::kBfloat16;
  on_ranks(replicas, [](World& world, const RefitSetup& setup) {
    RefitRank rank(world, setup);
    const grpo::testing::LateWork late(Delay::kWork, rank.memory->allocator);
    fill_coded(rank.policy, make_code(rank.policy.specs()), 0.0f);
    for (int64_t step = 1; step <= 10; ++step) {
      const Code code = make_code(rank.policy.specs(), step);
      const OwnedTensor values = owned_values(rank.policy, code);
      late.queue();
      for (const OwnedSpan& span : rank.policy.owned_spans()) {
        copy_tensor(span.weight, values.view().rows(span.state_offset, span.num_elements),
                    Stream::none());
      }
      rank.policy.gather_updated_weights();
      CHECK(rank.refit().fingerprint_ok());
      CHECK(count_wrong(rank.generation, code) == 0, "step {}", step);
    }
  });
}

// Gradients that one rank of each sum over dp holds, as passes may leave them.
void set_gradients(ShardedParameterStore& store, const Code& value) {
  store.zero_gradients();
  const AxisGroup& dp = store.groups().dp;
  if (dp.rank() + 1 == dp.size()) {
    grpo::testing::for_each_region(store, [&](ParameterId id, const LogicalTensor& part,
                                              const ShardRegion& region, const Tensor&) {
      HostDraft rows(store.gradient_shard(id).rows(region.stored_row, region.num_rows));
      for (int64_t r = 0; r < region.num_rows; ++r) {
        for (int64_t c = 0; c < region.num_cols; ++c) {
          write_value(rows.view(), r * region.num_cols + c,
                      value(part.name, region.logical_row + r, region.logical_col + c));
        }
      }
      rows.commit();
    });
  }
  store.reduce_gradients();
}

// A step of gradient descent at rate 1 from one code to the next; masters are exact in bfloat16.
TEST_P(RefitOrder, R04_RefitAfterAStepSendsTheMasters) {
  RefitSetup replicas = setup_of(GetParam(), DType::kBfloat16);
  replicas.trained = replicas.generated = even_config();
  on_ranks(replicas, [](World& world, const RefitSetup& setup) {
    RefitRank rank(world, setup);
    Code code = make_code(rank.policy.specs());
    fill_coded(rank.policy, code, 0.0f);
    rl::OptimizerConfig config;
    config.name = "sgd";
    config.kwargs.weight_decay = 0.0;
    rl::Optimizer optimizer(config, rank.policy, rank.memory->allocator);
    for (int64_t step = 1; step <= 10; ++step) {
      const Code next = make_code(rank.policy.specs(), 3 * step);
      set_gradients(rank.policy, [&](const std::string& tensor, int64_t row, int64_t col) {
        return code(tensor, row, col) - next(tensor, row, col);
      });
      optimizer.step(1.0, optimizer.gradient_norm(rank.memory->ctx), 0.0, rank.memory->ctx);
      CHECK(rank.refit().fingerprint_ok());
      CHECK(count_wrong(rank.generation, next) == 0, "step {}", step);
      code = next;
    }
  });
}

}  // namespace
}  // namespace grpo::parallel
