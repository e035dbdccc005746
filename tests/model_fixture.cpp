#include "tests/model_fixture.h"

#include <map>

#include "model/core/counter_rng.h"

namespace grpo::testing {

parallel::ProcessGroups solo_groups(int64_t gtp_alignment) {
  const auto axis = [](const char* name) {
    return parallel::AxisGroup::of(parallel::make_solo_communicator(name));
  };
  return {.tp = axis("tp"),
          .gtp_remat = axis("gtp_remat"),
          .dp = axis("dp"),
          .data = axis("data"),
          .world = axis("world"),
          .gtp_alignment = gtp_alignment};
}

namespace {

model::ModelConfig small_config(int64_t hidden, int64_t heads, int64_t intermediate, int64_t vocab,
                                bool tied) {
  return {.hidden_size = hidden,
          .num_layers = 2,
          .num_heads = heads,
          .num_kv_heads = 2,
          .head_dim = hidden / heads,
          .intermediate_size = intermediate,
          .vocab_size = vocab,
          .max_position_embeddings = 256,
          .rms_norm_eps = 1e-6,
          .rope_theta = 10000.0,
          .tie_word_embeddings = tied,
          .dtype = DType::kFloat32,
          .eos_token_ids = {2}};
}

}  // namespace

model::ModelConfig even_config(bool tied) { return small_config(64, 4, 128, 256, tied); }
model::ModelConfig odd_config(bool tied) { return small_config(48, 6, 100, 131, tied); }

TestModel::TestModel(RankContext& rank, const model::ModelConfig& model_config,
                     parallel::ProcessGroups groups, DType dtype, int64_t head_chunk_rows)
    : config(model_config),
      parameters(model::make_transformer_parameters(model_config, 0.1f)),
      store("policy", parameters.specs, std::move(groups), dtype, parallel::Gradients::kFp32,
            rank.allocator),
      transformer(config, parameters, store,
                  {.max_positions = config.max_position_embeddings, .head_chunk_rows = head_chunk_rows},
                  rank.allocator) {}

void for_each_region(const parallel::ShardedParameterStore& store,
                     const std::function<void(ParameterId, const LogicalTensor&,
                                              const parallel::Region&, const Tensor&)>& visit) {
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    for (const parallel::Region& region : store.layout(id).regions) {
      visit(id, store.specs()[i].parts[static_cast<size_t>(region.part)], region, store.shard(id));
    }
  }
}

void fill_lively(parallel::ShardedParameterStore& store, uint64_t seed) {
  for_each_region(store, [&](ParameterId id, const LogicalTensor& part, const parallel::Region& region,
                             const Tensor& shard) {
    const bool is_norm = store.specs()[static_cast<size_t>(id)].init == InitKind::kOnes;
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        const float draw =
            0.1f * normal_at(seed, hash_name(part.name), static_cast<uint64_t>(region.logical_row + r),
                             static_cast<uint64_t>(region.logical_col + c));
        const float value = is_norm ? 1.0f + draw : draw;
        const int64_t index = (region.stored_row + r) * region.num_cols + c;
        if (shard.dtype() == DType::kFloat32) {
          shard.data<float>()[index] = value;
        } else {
          shard.data<Bfloat16>()[index] = Bfloat16(value);
        }
      }
    }
  });
  store.mark_weights_changed();
}

std::vector<std::pair<std::string, std::vector<float>>> gather_logical(
    const parallel::ShardedParameterStore& store, const std::function<Tensor(ParameterId)>& source) {
  std::map<std::string, std::vector<float>> own;
  std::vector<std::string> order;
  for (const ParameterSpec& spec : store.specs()) {
    for (const LogicalTensor& part : spec.parts) {
      own[part.name] = std::vector<float>(static_cast<size_t>(part.rows * part.cols), 0.0f);
      order.push_back(part.name);
    }
  }
  const int gtp_rank = store.groups().gtp_remat.rank();
  for_each_region(store, [&](ParameterId id, const LogicalTensor& part, const parallel::Region& region,
                             const Tensor&) {
    const bool replicated = store.specs()[static_cast<size_t>(id)].gtp == GtpPlacement::kReplicated;
    if (replicated && gtp_rank != 0) return;
    const Tensor tensor = source(id);
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        const int64_t index = (region.stored_row + r) * region.num_cols + c;
        own[part.name][static_cast<size_t>((region.logical_row + r) * part.cols + region.logical_col + c)] =
            tensor.dtype() == DType::kFloat32 ? tensor.data<float>()[index]
                                              : static_cast<float>(tensor.data<Bfloat16>()[index]);
      }
    }
  });
  std::vector<std::pair<std::string, std::vector<float>>> result;
  for (const std::string& name : order) {
    std::vector<float> values = std::move(own[name]);
    const Tensor tensor(values.data(), DType::kFloat32, {static_cast<int64_t>(values.size())},
                        Device::cpu());
    // Every element is non-zero on one member only, so the sum is the value itself.
    store.groups().gtp_remat.communicator().all_reduce_sum(tensor, Stream::none());
    result.emplace_back(name, std::move(values));
  }
  return result;
}

}  // namespace grpo::testing
