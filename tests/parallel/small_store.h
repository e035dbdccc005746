// A store of two small matrices and a vector with coded weights, for tests of single passes; on
// test_device().
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "model/core/host_transfer.h"
#include "model/ops/reduce.h"
#include "tests/policy_fixture.h"

namespace grpo::parallel {

constexpr int64_t kRows = 5;
constexpr int64_t kCols = 3;

// Ids of the parameters of `small_specs`.
constexpr ParameterId kFirst = 0;
constexpr ParameterId kSecond = 1;  // of the same shape as the first
constexpr ParameterId kBias = 2;

inline int64_t num_cols(ParameterId id) { return id == kBias ? 1 : kCols; }

inline std::vector<ParameterSpec> small_specs() {
  const auto spec = [](const char* name, int64_t cols, bool is_vector) {
    return ParameterSpec{.name = name,
                         .parts = {{name, kRows, cols, is_vector}},
                         .tp_cut = TpCut::kReplicated,
                         .gtp = is_vector ? GtpPlacement::kReplicated : GtpPlacement::kSharded,
                         .init = InitKind::kZeros,
                         .init_std = 0.0f,
                         .decays = !is_vector};
  };
  return {spec("first", kCols, false), spec("second", kCols, false), spec("bias", 1, true)};
}

inline float code(ParameterId id, int64_t row, int64_t col) {
  return static_cast<float>((31 * row + col + 7 * id) % 251);
}

// The logical weight of small_specs() in row-major order.
inline std::vector<float> codes(ParameterId id) {
  std::vector<float> values;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < num_cols(id); ++col) values.push_back(code(id, row, col));
  }
  return values;
}

inline std::vector<float> host_values(const Tensor& tensor) {
  if (tensor.dtype() == DType::kFloat32) return to_host<float>(tensor);
  std::vector<float> values;
  for (const Bfloat16 value : to_host<Bfloat16>(tensor))
    values.push_back(static_cast<float>(value));
  return values;
}

class SmallStore {
 public:
  SmallStore(World& world, const Mesh& mesh, DType dtype = DType::kFloat32,
             testing::Delay kind = testing::Delay::kNone)
      : rank(world),
        store("small", small_specs(),
              testing::delay(make_training_groups(world, mesh, /*gtp_alignment=*/2), kind,
                             rank.allocator),
              dtype, Gradients::kFp32, prepared(rank)),
        late_work_(kind, rank.allocator) {
    testing::for_each_region(store, [](ParameterId id, const LogicalTensor&,
                                       const ShardRegion& region, const Tensor& shard) {
      HostDraft draft(shard.rows(region.stored_row, region.num_rows));
      for (int64_t r = 0; r < region.num_rows; ++r) {
        for (int64_t c = 0; c < region.num_cols; ++c) {
          const int64_t index = r * region.num_cols + c;
          const float value = code(id, region.logical_row + r, c);
          if (shard.dtype() == DType::kFloat32) {
            draft.view().data<float>()[index] = value;
          } else {
            draft.view().data<Bfloat16>()[index] = Bfloat16(value);
          }
        }
      }
      draft.commit();
    });
  }

  // Writes or adds `value` to every element, as an operator does: the host does not wait.
  void contribute(Pass& pass, ParameterId id, float value) {
    const GradientView view = pass.begin_grad(id);
    const Tensor gradient = view.tensor.reshaped({view.tensor.num_elements()});
    late_work_.queue();
    if (view.accumulate) {
      add(gradient, value);
    } else {
      copy_from_host<float>(gradient, constants(gradient, value));
    }
    pass.finish_grad(id);
  }

  // What the optimizer does to this rank's part.
  void add_to_weights(float value) {
    late_work_.queue();
    for (const OwnedSpan& span : store.owned_spans()) add(span.weight, value);
  }

  // Occupies the device ahead of what it is given next, if the delay is of work.
  void queue_late_work() const { late_work_.queue(); }

  testing::RankContext rank;
  ShardedParameterStore store;

 private:
  static Allocator& prepared(testing::RankContext& rank) {
    rank.allocator.set_poison_scratch(true);
    rank.workspace.reserve(size_t{1} << 12);  // live bytes are the store's alone from here on
    return rank.allocator;
  }
  static std::vector<float> constants(const Tensor& like, float value) {
    return std::vector<float>(static_cast<size_t>(like.num_elements()), value);
  }
  void add(const Tensor& data, float value) {
    const Workspace::Scope scope(rank.workspace);
    const Tensor added = rank.workspace.take(DType::kFloat32, {data.num_elements()});
    copy_from_host<float>(added, constants(data, value));
    ops::add_into(data, added, rank.ctx);
  }

  testing::LateWork late_work_;
};

inline void expect_whole(ParameterId id, const Tensor& weight) {
  ASSERT_EQ(weight.shape(), id == kBias ? Shape({kRows}) : Shape({kRows, kCols}));
  ASSERT_EQ(host_values(weight), codes(id)) << "parameter " << id;
}

inline UseSchedule reads(const std::vector<ParameterId>& order) {
  std::vector<ParameterUse> uses;
  for (const ParameterId id : order) uses.push_back({id, UsePhase::kForward, true, false});
  return UseSchedule(std::move(uses));
}

inline UseSchedule contributions(const std::vector<ParameterId>& order) {
  std::vector<ParameterUse> uses;
  for (const ParameterId id : order) uses.push_back({id, UsePhase::kBackward, false, true});
  return UseSchedule(std::move(uses));
}

// Every real element of the shard's gradient is `expected`, every padding element exactly 0.
inline void expect_gradient(const ShardedParameterStore& store, ParameterId id, float expected) {
  const std::vector<float> gradient = to_host<float>(store.gradient_shard(id));
  const ShardLayout& layout = store.layout(id);
  int64_t real_rows = 0;
  for (const ShardRegion& region : layout.regions) real_rows += region.num_rows;
  for (size_t i = 0; i < gradient.size(); ++i) {
    ASSERT_EQ(gradient[i], static_cast<int64_t>(i) < real_rows * layout.cols ? expected : 0.0f)
        << store.specs()[static_cast<size_t>(id)].name << ", element " << i;
  }
}

}  // namespace grpo::parallel
