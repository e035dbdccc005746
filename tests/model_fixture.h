// A model on one test rank: store, transformer and the context to run it in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/device_context.h"
#include "model/transformer.h"
#include "parallel/layout/process_groups.h"
#include "parallel/store/sharded_parameter_store.h"
#include "tests/test_device.h"

namespace grpo::testing {

// Memory and operator context of one rank, on test_device().
struct RankContext : model::DeviceContext {
  RankContext() : model::DeviceContext(test_device()) {}
  // With the device attached to the world: for ranks that communicate.
  explicit RankContext(parallel::World& world)
      : model::DeviceContext(test_device()), attachment(world.attach_device(allocator)) {}

  std::unique_ptr<parallel::DeviceAttachment> attachment;
};

// Every axis a group of one.
parallel::ProcessGroups solo_groups(int64_t gtp_alignment = 16);

// The fixtures of the failure cases: EVEN divides for every gtp up to 4, ODD pads everywhere.
model::ModelConfig even_config(bool tied = true);
model::ModelConfig odd_config(bool tied = true);

class TestModel {
 public:
  // Weights are zero; fill them through `store`.
  TestModel(RankContext& rank, const model::ModelConfig& config, parallel::ProcessGroups groups,
            DType dtype = DType::kFloat32, int64_t head_chunk_rows = 16);

  model::ModelConfig config;
  model::TransformerParameters parameters;
  parallel::ShardedParameterStore store;
  model::Transformer transformer;
};

// Of the batch's predicted rows.
struct TestScores {
  std::vector<float> processed;
  std::vector<float> unfiltered;
};
TestScores score(model::Transformer& transformer, const model::PackedBatch& batch,
                 float inv_temperature, model::FilterCheck* filter_check, OpContext& ctx);

// Logits [tokens, V] of every token of one sequence, through the cached path.
std::vector<float> logits_of(TestModel& model, const std::vector<int32_t>& tokens, OpContext& ctx);

// Random weights with norms and biases that are not 1 and 0, the same for every layout.
void fill_lively(parallel::ShardedParameterStore& store, uint64_t seed);

// How often a pass reads a parameter.
int num_reads(const UseSchedule& schedule, ParameterId parameter);

// Calls visit(parameter, part, region, shard) for every region of this rank's shards.
void for_each_region(const parallel::ShardedParameterStore& store,
                     const std::function<void(ParameterId, const LogicalTensor&,
                                              const parallel::ShardRegion&, const Tensor&)>& visit);

// A float32 value of a logical tensor by its place; written into a map for comparison between
// layouts: name -> row-major values, gathered over the store's gtp_remat group. `source` picks
// weights or gradients.
std::vector<std::pair<std::string, std::vector<float>>> gather_logical(
    const parallel::ShardedParameterStore& store, const std::function<Tensor(ParameterId)>& source);

}  // namespace grpo::testing
