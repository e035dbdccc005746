#include "tests/model_fixture.h"

#include <map>
#include <numeric>

#include "model/core/counter_rng.h"
#include "model/core/host_transfer.h"

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
      transformer(
          config, parameters, store,
          {.max_positions = config.max_position_embeddings, .head_chunk_rows = head_chunk_rows},
          rank.allocator) {}

int num_reads(const UseSchedule& schedule, ParameterId parameter) {
  int count = 0;
  for (const ParameterUse& use : schedule.uses()) {
    if (use.parameter == parameter && use.reads_weight) ++count;
  }
  return count;
}

void for_each_region(
    const parallel::ShardedParameterStore& store,
    const std::function<void(ParameterId, const LogicalTensor&, const parallel::ShardRegion&,
                             const Tensor&)>& visit) {
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    for (const parallel::ShardRegion& region : store.layout(id).regions) {
      visit(id, store.specs()[i].parts[static_cast<size_t>(region.part)], region, store.shard(id));
    }
  }
}

void fill_lively(parallel::ShardedParameterStore& store, uint64_t seed) {
  for_each_region(store, [&](ParameterId id, const LogicalTensor& part,
                             const parallel::ShardRegion& region, const Tensor& shard) {
    HostDraft draft(shard.rows(region.stored_row, region.num_rows));
    const Tensor& rows = draft.view();
    const bool is_norm = store.specs()[static_cast<size_t>(id)].init == InitKind::kOnes;
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        const float random = 0.1f * normal_at(seed, hash_name(part.name),
                                              static_cast<uint64_t>(region.logical_row + r),
                                              static_cast<uint64_t>(region.logical_col + c));
        const float value = is_norm ? 1.0f + random : random;
        const int64_t index = r * region.num_cols + c;
        if (rows.dtype() == DType::kFloat32) {
          rows.data<float>()[index] = value;
        } else {
          rows.data<Bfloat16>()[index] = Bfloat16(value);
        }
      }
    }
    draft.commit();
  });
  store.mark_weights_changed();
}

std::vector<std::pair<std::string, std::vector<float>>> gather_logical(
    const parallel::ShardedParameterStore& store,
    const std::function<Tensor(ParameterId)>& source) {
  std::map<std::string, std::vector<float>> own;
  std::vector<std::string> order;
  for (const ParameterSpec& spec : store.specs()) {
    for (const LogicalTensor& part : spec.parts) {
      own[part.name] = std::vector<float>(static_cast<size_t>(part.rows * part.cols), 0.0f);
      order.push_back(part.name);
    }
  }
  const int gtp_rank = store.groups().gtp_remat.rank();
  for_each_region(store, [&](ParameterId id, const LogicalTensor& part,
                             const parallel::ShardRegion& region, const Tensor&) {
    const bool replicated = store.specs()[static_cast<size_t>(id)].gtp == GtpPlacement::kReplicated;
    if (replicated && gtp_rank != 0) return;
    const HostCopy copy(source(id));
    const Tensor& tensor = copy.view();
    for (int64_t r = 0; r < region.num_rows; ++r) {
      for (int64_t c = 0; c < region.num_cols; ++c) {
        const int64_t index = (region.stored_row + r) * region.num_cols + c;
        own[part.name]
           [static_cast<size_t>((region.logical_row + r) * part.cols + region.logical_col + c)] =
               tensor.dtype() == DType::kFloat32
                   ? tensor.data<float>()[index]
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

TestScores score(model::Transformer& transformer, const model::PackedBatch& batch,
                 float inv_temperature, model::FilterCheck* filter_check, OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  const ops::TokenLogprobs out{
      .processed = ctx.workspace.take(DType::kFloat32, {batch.num_predicted()}),
      .unfiltered = ctx.workspace.take(DType::kFloat32, {batch.num_predicted()})};
  for (const Tensor& values : {out.processed, out.unfiltered}) {
    poison_memory(values.raw(), values.size_bytes(), values.device());
  }
  transformer.score(out, batch, inv_temperature, filter_check, ctx);
  return {.processed = to_host<float>(out.processed), .unfiltered = to_host<float>(out.unfiltered)};
}

std::vector<float> logits_of(TestModel& model, const std::vector<int32_t>& tokens, OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  const auto t = static_cast<int64_t>(tokens.size());
  const model::PackedSequence packed{.tokens = tokens, .first_target = t, .kept = {}};
  const model::PackedBatch batch({&packed, 1}, ctx.workspace.allocator());
  model::CachedRows rows{.tokens = batch.tokens,
                         .positions = batch.positions,
                         .kv = {.keys = {},
                                .values = {},
                                .query_offsets = batch.query_offsets,
                                .context_lengths = batch.context_lengths,
                                .page_first_slot = batch.page_first_slot,
                                .page_size_tokens = t,
                                .max_query_rows = t,
                                .max_context_tokens = t},
                         .keys = {},
                         .values = {},
                         .logit_rows = ctx.workspace.take(DType::kInt32, {t})};
  const Shape cache{t, model.config.num_kv_heads, model.config.head_dim};
  for (int64_t layer = 0; layer < model.config.num_layers; ++layer) {
    rows.keys.push_back(ctx.workspace.take(model.store.dtype(), cache));
    rows.values.push_back(ctx.workspace.take(model.store.dtype(), cache));
  }
  std::vector<int32_t> all_rows(tokens.size());
  std::iota(all_rows.begin(), all_rows.end(), 0);
  copy_from_host<int32_t>(rows.logit_rows, all_rows);
  const Tensor logits = ctx.workspace.take(DType::kFloat32, {t, model.config.vocab_size});
  poison_memory(logits.raw(), logits.size_bytes(), logits.device());
  model.transformer.forward_cached(logits, rows, ctx);
  return to_host<float>(logits);
}

}  // namespace grpo::testing
