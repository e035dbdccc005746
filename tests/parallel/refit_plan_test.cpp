// The refit plan as arithmetic: its tasks carried out by hand between in-memory shards of all
// ranks.
#include "parallel/refit/refit_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "model/transformer_parameters.h"
#include "tests/parallel/coded_weights.h"

namespace grpo::parallel {
namespace {

using grpo::testing::even_config;
using grpo::testing::odd_config;

std::vector<ParameterSpec> specs_of(const model::ModelConfig& config) {
  return model::make_transformer_parameters(config, 0.1f).specs;
}

model::ModelConfig q05_config() { return *model::preset_model_config("qwen2.5-0.5b"); }

// Generation over tensor parallelism: consecutive ranks form one model.
std::vector<ShardCoordinate> inference_coordinates(int world_size, int tp_size) {
  std::vector<ShardCoordinate> coordinates;
  for (int rank = 0; rank < world_size; ++rank) {
    coordinates.push_back({.tp_size = tp_size,
                           .tp_rank = rank % tp_size,
                           .gtp_size = 1,
                           .gtp_rank = 0,
                           .gtp_alignment = 1});
  }
  return coordinates;
}

struct Layouts {
  int tp;
  int gtp;
  int dp;  // at least; more replicas where the inference degree needs the ranks
  int inference_tp;
};

RefitSide training_side(const std::vector<ParameterSpec>& specs, const Layouts& l,
                        DType dtype = DType::kFloat32) {
  const int shard_ranks = l.tp * l.gtp;
  const int world = std::lcm(shard_ranks * l.dp, l.inference_tp);
  return {.specs = specs,
          .coordinates = training_coordinates(Mesh(l.tp, l.gtp, world / shard_ranks), 16),
          .dtype = dtype};
}

RefitSide inference_side(const std::vector<ParameterSpec>& specs, const RefitSide& training, int tp,
                         DType dtype = DType::kFloat32) {
  return {.specs = specs,
          .coordinates = inference_coordinates(static_cast<int>(training.coordinates.size()), tp),
          .dtype = dtype};
}

std::string layouts_name(const Layouts& l) {
  return fmt::format("tp{}_gtp{}_dp{}_to_tp{}", l.tp, l.gtp, l.dp, l.inference_tp);
}

// One side's storage on all ranks: [rank][parameter][element].
using Storage = std::vector<std::vector<std::vector<float>>>;

Storage filled(const RefitSide& side, float value) {
  Storage storage;
  for (const ShardCoordinate& coordinate : side.coordinates) {
    auto& rank = storage.emplace_back();
    for (const ParameterSpec& spec : side.specs) {
      rank.emplace_back(static_cast<size_t>(compute_shard_layout(spec, coordinate).num_elements()),
                        value);
    }
  }
  return storage;
}

// Calls visit(rank, parameter, element, tensor, row, col) for every logical element a side stores.
template <typename Visit>
void for_each_stored(const RefitSide& side, const Visit& visit) {
  for (size_t rank = 0; rank < side.coordinates.size(); ++rank) {
    for (size_t p = 0; p < side.specs.size(); ++p) {
      const ShardLayout layout = compute_shard_layout(side.specs[p], side.coordinates[rank]);
      for (const ShardRegion& region : layout.regions) {
        const std::string& name = side.specs[p].parts[static_cast<size_t>(region.part)].name;
        for (int64_t r = 0; r < region.num_rows; ++r) {
          for (int64_t c = 0; c < region.num_cols; ++c) {
            visit(rank, p, static_cast<size_t>((region.stored_row + r) * layout.cols + c), name,
                  region.logical_row + r, region.logical_col + c);
          }
        }
      }
    }
  }
}

int64_t stored_cols(const RefitSide& side, int rank, ParameterId parameter) {
  return compute_shard_layout(side.specs[static_cast<size_t>(parameter)],
                              side.coordinates[static_cast<size_t>(rank)])
      .cols;
}

// What a faithful executor of the plan does. `coverage` counts the writes of each destination
// element.
void carry_out(const RefitPlan& plan, const RefitSide& source_side, const Storage& source,
               const RefitSide& destination_side, Storage& destination, Storage& coverage) {
  for (const TransferTask& t : plan.tasks()) {
    const auto sp = static_cast<size_t>(t.source_parameter);
    const auto dp = static_cast<size_t>(t.destination_parameter);
    const auto& from = source[static_cast<size_t>(t.source_rank)][sp];
    auto& to = destination[static_cast<size_t>(t.destination_rank)][dp];
    auto& count = coverage[static_cast<size_t>(t.destination_rank)][dp];
    const int64_t from_cols = stored_cols(source_side, t.source_rank, t.source_parameter);
    const int64_t to_cols =
        stored_cols(destination_side, t.destination_rank, t.destination_parameter);
    ASSERT_LE(t.source_col + t.num_cols, from_cols);
    ASSERT_LE(t.destination_col + t.num_cols, to_cols);
    for (int64_t r = 0; r < t.num_rows; ++r) {
      for (int64_t c = 0; c < t.num_cols; ++c) {
        const auto s = static_cast<size_t>((t.source_row + r) * from_cols + t.source_col + c);
        const auto d =
            static_cast<size_t>((t.destination_row + r) * to_cols + t.destination_col + c);
        to.at(d) = from.at(s);
        count.at(d) += 1.0f;
      }
    }
  }
}

// Every destination element has exactly one source, holds its code, and padding is never written.
void expect_faithful(const RefitSide& source_side, const RefitSide& destination_side,
                     const RefitPlanOptions& options = {}) {
  const Code code = make_code(source_side.specs);
  const RefitPlan plan(source_side, destination_side, options);
  Storage source = filled(source_side, -1.0f);  // padding: no code
  for_each_stored(source_side,
                  [&](size_t rank, size_t p, size_t element, const std::string& name, int64_t row,
                      int64_t col) { source[rank][p][element] = code(name, row, col); });
  Storage destination = filled(destination_side, std::nanf(""));
  Storage coverage = filled(destination_side, 0.0f);
  carry_out(plan, source_side, source, destination_side, destination, coverage);
  const bool has_head = std::any_of(source_side.specs.begin(), source_side.specs.end(),
                                    [](const ParameterSpec& spec) { return spec.name == "head"; });
  int64_t wrong = 0;
  double stored = 0;
  for_each_stored(destination_side, [&](size_t rank, size_t p, size_t element,
                                        const std::string& name, int64_t row, int64_t col) {
    const std::string source_name =
        name == "lm_head.weight" && !has_head ? "model.embed_tokens.weight" : name;
    wrong += destination[rank][p][element] == code(source_name, row, col) &&
                     coverage[rank][p][element] == 1.0f
                 ? 0
                 : 1;
    ++stored;
  });
  EXPECT_EQ(wrong, 0);
  double written = 0;
  for (const auto& rank : coverage) {
    for (const auto& parameter : rank)
      written += std::reduce(parameter.begin(), parameter.end(), 0.0);
  }
  EXPECT_EQ(written, stored);
}

class RefitPlanLayouts : public ::testing::TestWithParam<Layouts> {};

// R01.
TEST_P(RefitPlanLayouts, EveryElementHasOneSourceAndTheRightCode) {
  for (const model::ModelConfig& config :
       {even_config(true), even_config(false), odd_config(true), odd_config(false)}) {
    SCOPED_TRACE(config.vocab_size);
    const RefitSide source = training_side(specs_of(config), GetParam());
    expect_faithful(source, inference_side(source.specs, source, GetParam().inference_tp));
  }
}

// R05.
TEST_P(RefitPlanLayouts, ATiedModelFeedsASeparateHead) {
  const RefitSide source = training_side(specs_of(odd_config(true)), GetParam());
  expect_faithful(source,
                  inference_side(specs_of(odd_config(false)), source, GetParam().inference_tp));
}

TEST_P(RefitPlanLayouts, FingerprintsCountEveryElementOnce) {
  const RefitSide source = training_side(specs_of(odd_config(true)), GetParam());
  const RefitSide destination =
      inference_side(specs_of(odd_config(false)), source, GetParam().inference_tp);
  const RefitPlan plan(source, destination, {});
  const auto area = [](const std::vector<FingerprintRegion>& regions) {
    int64_t sum = 0;
    for (const FingerprintRegion& region : regions) sum += region.num_rows * region.num_cols;
    return sum;
  };
  const int64_t logical = num_elements(destination.specs);
  int64_t source_area = 0;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    source_area += area(plan.source_fingerprint(rank));
  }
  EXPECT_EQ(source_area, logical);
  for (int first = 0; first < plan.world_size(); first += GetParam().inference_tp) {
    int64_t model_area = 0;
    for (int i = 0; i < GetParam().inference_tp; ++i) {
      model_area += area(plan.destination_fingerprint(first + i));
    }
    EXPECT_EQ(model_area, logical) << "model of ranks from " << first;
  }
}

// R01, R03. Tasks by area, for sizes at which elements are too many.
TEST_P(RefitPlanLayouts, Qwen05IsCoveredExactly) {
  const RefitSide source = training_side(specs_of(q05_config()), GetParam(), DType::kBfloat16);
  // Seven heads a rank are whole for tp 2; tp 4 cuts within a head, which rows allow.
  const RefitSide destination =
      inference_side(source.specs, source, GetParam().inference_tp, DType::kBfloat16);
  const RefitPlan plan(source, destination, {});
  std::map<std::pair<int, ParameterId>, std::vector<TransferTask>> by_place;
  for (const TransferTask& task : plan.tasks()) {
    by_place[{task.destination_rank, task.destination_parameter}].push_back(task);
  }
  for (size_t rank = 0; rank < destination.coordinates.size(); ++rank) {
    for (size_t p = 0; p < destination.specs.size(); ++p) {
      const ShardLayout layout =
          compute_shard_layout(destination.specs[p], destination.coordinates[rank]);
      int64_t logical = 0;
      for (const ShardRegion& region : layout.regions) logical += region.num_rows * region.num_cols;
      int64_t covered = 0;
      const auto& tasks = by_place[{static_cast<int>(rank), static_cast<ParameterId>(p)}];
      for (size_t i = 0; i < tasks.size(); ++i) {
        covered += tasks[i].num_elements();
        for (size_t j = 0; j < i; ++j) {
          const auto apart = [](int64_t a, int64_t na, int64_t b, int64_t nb) {
            return a + na <= b || b + nb <= a;
          };
          ASSERT_TRUE(apart(tasks[i].destination_row, tasks[i].num_rows, tasks[j].destination_row,
                            tasks[j].num_rows) ||
                      apart(tasks[i].destination_col, tasks[i].num_cols, tasks[j].destination_col,
                            tasks[j].num_cols))
              << "two sources for one place of " << destination.specs[p].name;
        }
      }
      ASSERT_EQ(covered, logical) << destination.specs[p].name << " on rank " << rank;
    }
  }
}

std::vector<Layouts> all_layouts() {
  std::vector<Layouts> layouts;
  for (const int inference_tp : {1, 2, 4}) {
    for (const int tp : {1, 2}) {
      for (const int gtp : {1, 2, 3, 4}) layouts.push_back({tp, gtp, 1, inference_tp});
    }
    layouts.push_back({1, 2, 2, inference_tp});
    layouts.push_back({2, 2, 2, inference_tp});
  }
  return layouts;
}

INSTANTIATE_TEST_SUITE_P(All, RefitPlanLayouts, ::testing::ValuesIn(all_layouts()),
                         [](const auto& test) { return layouts_name(test.param); });

// R02. A stored row is not a logical row: padding and fused borders shift it.
TEST(RefitPlan, StoredRowsAreMappedThroughLogicalRows) {
  const RefitSide source = training_side(specs_of(odd_config()), {2, 2, 1, 1});
  const RefitPlan plan(source, inference_side(source.specs, source, 1), {});
  const auto qkv = std::find_if(source.specs.begin(), source.specs.end(), [](const auto& spec) {
    return spec.name == "layers.0.qkv.weight";
  });
  const auto id = static_cast<ParameterId>(qkv - source.specs.begin());
  // Rank 1 is tp rank 1: its slice is q 24-47, k 8-15, v 8-15, 40 rows stored as 64 (32 a gtp
  // rank).
  std::vector<std::pair<int64_t, int64_t>> places;  // stored row on rank 1, row of the fused whole
  for (const TransferTask& task : plan.tasks()) {
    if (task.source_rank == 1 && task.destination_rank == 0 && task.destination_parameter == id) {
      places.emplace_back(task.source_row, task.destination_row);
    }
  }
  std::sort(places.begin(), places.end());
  EXPECT_EQ(places, (std::vector<std::pair<int64_t, int64_t>>{{0, 24}, {24, 48 + 8}}));
}

// R03. Q05 tp 2: rank 0 holds query heads 0-6 and key/value head 0, of the weight and of the bias.
TEST(RefitPlan, InferenceTensorParallelismKeepsWholeHeads) {
  const RefitSide source = training_side(specs_of(q05_config()), {1, 2, 1, 2}, DType::kBfloat16);
  const RefitSide destination = inference_side(source.specs, source, 2, DType::kBfloat16);
  for (const char* name : {"layers.0.qkv.weight", "layers.0.qkv.bias"}) {
    const auto spec = std::find_if(destination.specs.begin(), destination.specs.end(),
                                   [&](const ParameterSpec& s) { return s.name == name; });
    const auto regions = compute_shard_layout(*spec, destination.coordinates[0]).regions;
    ASSERT_EQ(regions.size(), 3u) << name;
    EXPECT_EQ(std::pair(regions[0].logical_row, regions[0].num_rows),
              std::pair(int64_t{0}, int64_t{7 * 64}));
    EXPECT_EQ(std::pair(regions[1].logical_row, regions[1].num_rows),
              std::pair(int64_t{0}, int64_t{64}));
    EXPECT_EQ(std::pair(regions[2].logical_row, regions[2].num_rows),
              std::pair(int64_t{0}, int64_t{64}));
  }
}

// Bytes a rank stages in a window, sends and receives together.
std::vector<int64_t> most_staged(const RefitPlan& plan) {
  std::vector<int64_t> most(static_cast<size_t>(plan.world_size()), 0);
  for (size_t w = 0; w + 1 < plan.window_offsets().size(); ++w) {
    std::vector<int64_t> staged(most.size(), 0);
    for (size_t i = plan.window_offsets()[w]; i < plan.window_offsets()[w + 1]; ++i) {
      const TransferTask& task = plan.tasks()[i];
      if (task.source_rank == task.destination_rank) continue;
      const int64_t bytes =
          task.num_elements() * static_cast<int64_t>(dtype_size_bytes(plan.wire_dtype()));
      staged[static_cast<size_t>(task.source_rank)] += bytes;
      staged[static_cast<size_t>(task.destination_rank)] += bytes;
    }
    for (size_t rank = 0; rank < most.size(); ++rank)
      most[rank] = std::max(most[rank], staged[rank]);
  }
  return most;
}

void expect_windows_are_a_partition(const RefitPlan& plan) {
  const auto& offsets = plan.window_offsets();
  ASSERT_GE(offsets.size(), 2u);
  EXPECT_EQ(offsets.front(), 0u);
  EXPECT_EQ(offsets.back(), plan.tasks().size());
  EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end()));
  EXPECT_EQ(std::adjacent_find(offsets.begin(), offsets.end()), offsets.end()) << "empty window";
}

// R13.
TEST(RefitPlan, NoRankEverStagesMoreThanTheBucket) {
  for (const Layouts& layouts : {Layouts{1, 2, 1, 1}, Layouts{1, 4, 1, 1}, Layouts{1, 2, 2, 1},
                                 Layouts{2, 2, 1, 2}, Layouts{1, 3, 1, 1}}) {
    SCOPED_TRACE(layouts_name(layouts));
    const RefitSide source = training_side(specs_of(odd_config()), layouts);
    const RefitSide destination =
        inference_side(source.specs, source, layouts.inference_tp, DType::kBfloat16);
    for (const int64_t bucket : {512, 4096, 20000}) {
      const RefitPlan plan(source, destination, {.bucket_bytes = bucket});
      expect_windows_are_a_partition(plan);
      EXPECT_GT(plan.window_offsets().size(), 3u) << bucket;
      for (const int64_t bytes : most_staged(plan)) EXPECT_LE(bytes, bucket);
      expect_faithful(source, destination, {.bucket_bytes = bucket});
    }
  }
}

// R13.
TEST(RefitPlan, Qwen05StagesAtMostTheDefaultBucket) {
  const RefitSide source = training_side(specs_of(q05_config()), {1, 2, 1, 1}, DType::kBfloat16);
  const RefitPlan plan(source, inference_side(source.specs, source, 1, DType::kBfloat16), {});
  expect_windows_are_a_partition(plan);
  for (const int64_t bytes : most_staged(plan)) {
    EXPECT_LE(bytes, int64_t{64} << 20);
    EXPECT_GT(bytes, int64_t{32} << 20);  // and uses it
  }
}

// A row is the smallest task, however small the bucket.
TEST(RefitPlan, ABucketBelowOneRowMovesRowByRow) {
  const RefitSide source = training_side(specs_of(even_config()), {1, 2, 1, 1});
  const RefitSide destination = inference_side(source.specs, source, 1);
  const RefitPlan plan(source, destination, {.bucket_bytes = 16});
  for (const TransferTask& task : plan.tasks())
    EXPECT_LE(task.num_cols == 1 ? 1 : task.num_rows, 1);
  expect_faithful(source, destination, {.bucket_bytes = 16});
}

TEST(RefitPlan, MaxTaskRowsCutsTasks) {
  const RefitSide source = training_side(specs_of(odd_config()), {1, 2, 1, 1});
  const RefitSide destination = inference_side(source.specs, source, 1);
  const RefitPlan plan(source, destination, {.max_task_rows = 3});
  for (const TransferTask& task : plan.tasks()) EXPECT_LE(task.num_rows, 3);
  expect_faithful(source, destination, {.max_task_rows = 3});
}

TEST(RefitPlan, ReplicasShareTheSending) {
  for (const Layouts& layouts : {Layouts{1, 2, 2, 1}, Layouts{1, 2, 4, 1}, Layouts{1, 4, 2, 1}}) {
    SCOPED_TRACE(layouts_name(layouts));
    const RefitSide source = training_side(specs_of(even_config()), layouts);
    const RefitPlan plan(source, inference_side(source.specs, source, 1), {});
    std::vector<int64_t> sent(source.coordinates.size(), 0);
    for (const TransferTask& task : plan.tasks()) {
      if (task.source_rank != task.destination_rank) {
        sent[static_cast<size_t>(task.source_rank)] += task.num_elements();
      }
    }
    EXPECT_GT(sent[0], 0);
    for (const int64_t elements : sent) EXPECT_EQ(elements, sent[0]);
  }
}

// R11.
TEST(RefitPlan, TheNarrowerDtypeTravels) {
  const RefitSide source = training_side(specs_of(even_config()), {1, 2, 1, 1});
  const auto wire = [&](DType from, DType to) {
    RefitSide training = source;
    training.dtype = from;
    return RefitPlan(training, inference_side(source.specs, source, 1, to), {}).wire_dtype();
  };
  EXPECT_EQ(wire(DType::kFloat32, DType::kFloat32), DType::kFloat32);
  EXPECT_EQ(wire(DType::kFloat32, DType::kBfloat16), DType::kBfloat16);
  EXPECT_EQ(wire(DType::kBfloat16, DType::kFloat32), DType::kBfloat16);
}

// R10.
TEST(RefitPlan, TheHashTellsPlansApart) {
  const RefitSide source = training_side(specs_of(even_config()), {1, 2, 2, 1});
  const RefitSide destination = inference_side(source.specs, source, 1);
  const uint64_t hash = RefitPlan(source, destination, {}).hash();
  EXPECT_EQ(RefitPlan(source, destination, {}).hash(), hash);
  EXPECT_NE(RefitPlan(source, destination, {.bucket_bytes = 4096}).hash(), hash);
  EXPECT_NE(RefitPlan(source, destination, {.max_task_rows = 1}).hash(), hash);
  const RefitSide bf16 = inference_side(source.specs, source, 1, DType::kBfloat16);
  EXPECT_NE(RefitPlan(source, bf16, {}).hash(), hash);
  EXPECT_NE(RefitPlan(training_side(source.specs, {1, 4, 1, 1}), destination, {}).hash(), hash);
  EXPECT_NE(RefitPlan(training_side(source.specs, {2, 2, 1, 1}), destination, {}).hash(), hash);
  // Same shapes under other names: another model.
  RefitSide renamed = source;
  renamed.specs.front().parts.front().name = "model.other.weight";
  EXPECT_NE(RefitPlan(renamed, inference_side(renamed.specs, renamed, 1), {}).hash(), hash);
}

void expect_refused(const RefitSide& source, const RefitSide& destination,
                    const std::string& part) {
  try {
    const RefitPlan plan(source, destination, {});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// R05.
TEST(RefitPlan, RefusesModelsThatDiffer) {
  const Layouts layouts{1, 2, 1, 1};
  const RefitSide untied = training_side(specs_of(even_config(false)), layouts);
  expect_refused(untied, inference_side(specs_of(even_config(true)), untied, 1), "lm_head.weight");
  model::ModelConfig wider = even_config();
  wider.vocab_size += 1;
  const RefitSide even = training_side(specs_of(even_config()), layouts);
  expect_refused(even, inference_side(specs_of(wider), even, 1), "257");
  model::ModelConfig deeper = even_config();
  deeper.num_layers += 1;
  expect_refused(even, inference_side(specs_of(deeper), even, 1), "model.layers.2.");
  const RefitSide deep = training_side(specs_of(deeper), layouts);
  expect_refused(deep, inference_side(specs_of(even_config()), deep, 1), "model.layers.2.");
}

TEST(RefitPlan, RefusesSidesOfDifferentWorlds) {
  const RefitSide source = training_side(specs_of(even_config()), {1, 2, 1, 1});
  RefitSide destination = inference_side(source.specs, source, 1);
  destination.coordinates.pop_back();
  EXPECT_THROW(RefitPlan(source, destination, {}), InternalError);
}

TEST(RefitPlan, WholeModelCoordinatesAreWhole) {
  const std::vector<ParameterSpec> specs = specs_of(odd_config());
  const auto coordinates = whole_model_coordinates(3);
  ASSERT_EQ(coordinates.size(), 3u);
  for (const ShardCoordinate& coordinate : coordinates) {
    for (const ParameterSpec& spec : specs) {
      EXPECT_EQ(compute_shard_layout(spec, coordinate).num_elements(), spec.num_elements());
    }
  }
}

}  // namespace
}  // namespace grpo::parallel
