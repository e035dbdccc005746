#include "model/transformer.h"

#include "model/layers/linear_gradients.h"
#include "model/ops/embedding.h"
#include "model/ops/rope.h"
#include "model/ops/rows.h"

namespace grpo::model {

namespace {

LayerShape layer_shape(const ModelConfig& c) {
  return {.hidden_size = c.hidden_size,
          .num_heads = c.num_heads,
          .num_kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim,
          .intermediate_size = c.intermediate_size,
          .rms_norm_eps = static_cast<float>(c.rms_norm_eps)};
}

HeadTargets head_targets(const PackedBatch& batch, float inv_temperature,
                         FilterCheck* filter_check) {
  return {.targets = batch.targets,
          .kept = batch.kept.view(),
          .inv_temperature = inv_temperature,
          .filter_check = filter_check};
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const TransformerParameters& parameters,
                         ParameterStore& store, const TransformerOptions& options,
                         Allocator& allocator)
    : config_(config),
      parameters_(parameters),
      store_(store),
      rope_table_(allocator, "rope_table", DType::kFloat32,
                  {options.max_positions, config.head_dim}),
      head_(parameters.head, config.vocab_size, options.head_chunk_rows),
      score_schedule_({}),
      train_single_pass_schedule_({}),
      train_two_pass_schedule_({}) {
  CHECK(options.max_positions >= 1 && options.head_chunk_rows >= 1);
  ops::fill_rope_table(rope_table_, config.rope_theta);
  const LayerShape shape = layer_shape(config);
  for (const LayerParameters& p : parameters_.layers) {
    attention_.emplace_back(shape, AttentionLayerParameters{.norm = p.input_norm,
                                                            .qkv_weight = p.qkv_weight,
                                                            .qkv_bias = p.qkv_bias,
                                                            .o_weight = p.o_weight});
    mlp_.emplace_back(shape, MlpLayerParameters{.norm = p.post_norm,
                                                .gate_up_weight = p.gate_up_weight,
                                                .down_weight = p.down_weight});
  }
  score_schedule_ = make_score_schedule();
  train_single_pass_schedule_ = make_train_schedule(true);
  train_two_pass_schedule_ = make_train_schedule(false);
}

UseSchedule Transformer::make_score_schedule() const {
  std::vector<ParameterUse> uses;
  uses.push_back({parameters_.embedding, UsePhase::kForward, true, false});
  for (size_t i = 0; i < attention_.size(); ++i) {
    attention_[i].append_forward_uses(uses);
    mlp_[i].append_forward_uses(uses);
  }
  uses.push_back({parameters_.final_norm, UsePhase::kForward, true, false});
  head_.append_score_uses(uses);
  return UseSchedule(std::move(uses));
}

UseSchedule Transformer::make_train_schedule(bool token_local) const {
  std::vector<ParameterUse> uses;
  uses.push_back({parameters_.embedding, UsePhase::kForward, true, false});
  for (size_t i = 0; i < attention_.size(); ++i) {
    attention_[i].append_forward_uses(uses);
    mlp_[i].append_forward_uses(uses);
  }
  uses.push_back({parameters_.final_norm, UsePhase::kForward, true, false});
  head_.append_train_uses(uses, token_local);
  uses.push_back({parameters_.final_norm, UsePhase::kBackward, true, true});
  for (size_t i = attention_.size(); i-- > 0;) {
    mlp_[i].append_backward_uses(uses);
    attention_[i].append_backward_uses(uses);
  }
  uses.push_back({parameters_.embedding, UsePhase::kBackward, false, true});
  return UseSchedule(std::move(uses));
}

ResidualStream Transformer::embed(Pass& pass, const Tensor& tokens, OpContext& ctx) {
  const Shape shape{tokens.size(0), config_.hidden_size};
  ResidualStream stream{.x = ctx.workspace.take(store_.dtype(), shape),
                        .delta = ctx.workspace.take(store_.dtype(), shape)};
  const MaterializedWeight weight = pass.use(parameters_.embedding);
  ops::embedding_forward(stream.x, tokens, weight.tensor(), ctx);
  return stream;
}

// With rstd a backward follows, which needs the layers' x.
void Transformer::final_norm(Pass& pass, ResidualStream& stream, const Tensor& normed,
                             const Tensor& rstd, OpContext& ctx) {
  const MaterializedWeight weight = pass.use(parameters_.final_norm);
  normalize(stream, normed, rstd, weight.tensor(), static_cast<float>(config_.rms_norm_eps),
            !rstd.is_absent(), ctx);
}

KvView Transformer::packed_kv(const PackedBatch& batch, OpContext& ctx) const {
  const Shape shape{batch.num_tokens(), config_.num_kv_heads, config_.head_dim};
  return {.keys = ctx.workspace.take(store_.dtype(), shape),
          .values = ctx.workspace.take(store_.dtype(), shape),
          .query_offsets = batch.query_offsets,
          .context_lengths = batch.context_lengths,
          .page_first_slot = batch.page_first_slot,
          .page_size_tokens = batch.max_length,
          .max_query_rows = batch.max_length,
          .max_context_tokens = batch.max_length};
}

void Transformer::score(const ops::TokenLogprobs& out, const PackedBatch& batch,
                        float inv_temperature, FilterCheck* filter_check, OpContext& ctx) {
  CHECK(batch.max_length <= rope_table_.view().size(0), "sequence of {} tokens, {} positions",
        batch.max_length, rope_table_.view().size(0));
  const Workspace::Scope scope(ctx.workspace);
  const std::unique_ptr<Pass> pass = store_.begin_pass(score_schedule_);
  ResidualStream stream = embed(*pass, batch.tokens, ctx);
  for (size_t i = 0; i < attention_.size(); ++i) {
    const Workspace::Scope layer_scope(ctx.workspace);
    const LayerInputs inputs{
        .positions = batch.positions, .rope_table = rope_table_, .kv = packed_kv(batch, ctx)};
    attention_[i].forward(*pass, stream, inputs, nullptr, ctx);
    mlp_[i].forward(*pass, stream, nullptr, ctx);
  }
  const Tensor normed = ctx.workspace.take(stream.x.dtype(), stream.x.shape());
  final_norm(*pass, stream, normed, Tensor(), ctx);
  const Tensor picked =
      ctx.workspace.take(normed.dtype(), {batch.num_predicted(), config_.hidden_size});
  ops::gather_rows(picked, normed, batch.predicted_rows, ctx);
  head_.score(*pass, out, picked, head_targets(batch, inv_temperature, filter_check), ctx);
  pass->finish();
}

Tensor Transformer::train_head(Pass& pass, const PackedBatch& batch, ResidualStream stream,
                               const HeadTargets& targets, TokenLoss& loss, OpContext& ctx) {
  const Tensor dx = ctx.workspace.take(stream.x.dtype(), stream.x.shape());
  const Workspace::Scope scope(ctx.workspace);
  const Tensor rstd = ctx.workspace.take(DType::kFloat32, {dx.size(0)});
  const Tensor normed = ctx.workspace.take(dx.dtype(), dx.shape());
  final_norm(pass, stream, normed, rstd, ctx);
  const Tensor picked =
      ctx.workspace.take(dx.dtype(), {batch.num_predicted(), config_.hidden_size});
  ops::gather_rows(picked, normed, batch.predicted_rows, ctx);
  const Tensor dpicked = ctx.workspace.take(dx.dtype(), picked.shape());
  head_.train(pass, dpicked, picked, targets, loss, ctx);
  const Tensor dnormed = ctx.workspace.take(dx.dtype(), dx.shape());
  ops::scatter_rows(dnormed, dpicked, batch.predicted_rows, ctx);
  fill_zero(dx, ctx.stream);
  norm_backward(pass, parameters_.final_norm,
                {.dx = dx, .dout = dnormed, .x = stream.x, .rstd = rstd}, ctx);
  return dx;
}

void Transformer::train(const PackedBatch& batch, float inv_temperature, TokenLoss& loss,
                        FilterCheck* filter_check, OpContext& ctx) {
  CHECK(batch.max_length <= rope_table_.view().size(0), "sequence of {} tokens, {} positions",
        batch.max_length, rope_table_.view().size(0));
  const Workspace::Scope scope(ctx.workspace);
  const std::unique_ptr<Pass> pass = store_.begin_pass(train_schedule(loss.is_token_local()));
  ResidualStream stream = embed(*pass, batch.tokens, ctx);
  std::vector<SavedLayer> saved(attention_.size());
  LayerInputs inputs{.positions = batch.positions, .rope_table = rope_table_, .kv = {}};
  for (size_t i = 0; i < attention_.size(); ++i) {
    inputs.kv = saved[i].kv = packed_kv(batch, ctx);
    attention_[i].forward(*pass, stream, inputs, &saved[i].attention, ctx);
    mlp_[i].forward(*pass, stream, &saved[i].mlp, ctx);
  }
  const Tensor dx = train_head(*pass, batch, stream,
                               head_targets(batch, inv_temperature, filter_check), loss, ctx);
  for (size_t i = attention_.size(); i-- > 0;) {
    mlp_[i].backward(*pass, dx, saved[i].mlp, ctx);
    inputs.kv = saved[i].kv;
    attention_[i].backward(*pass, dx, inputs, saved[i].attention, ctx);
  }
  const GradientView gradient = pass->begin_grad(parameters_.embedding);
  ops::embedding_backward(gradient.tensor, dx, batch.tokens, gradient.accumulate, ctx);
  pass->finish_grad(parameters_.embedding);
  pass->finish();
}

void Transformer::forward_cached(const Tensor& logits, const CachedRows& rows, OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  const std::unique_ptr<Pass> pass = store_.begin_pass(score_schedule_);
  ResidualStream stream = embed(*pass, rows.tokens, ctx);
  LayerInputs inputs{.positions = rows.positions, .rope_table = rope_table_, .kv = rows.kv};
  for (size_t i = 0; i < attention_.size(); ++i) {
    const Workspace::Scope layer_scope(ctx.workspace);
    inputs.kv.keys = rows.keys[i];
    inputs.kv.values = rows.values[i];
    attention_[i].forward(*pass, stream, inputs, nullptr, ctx);
    mlp_[i].forward(*pass, stream, nullptr, ctx);
  }
  add_up(stream, ctx);
  ResidualStream picked{
      .x = ctx.workspace.take(store_.dtype(), {logits.size(0), config_.hidden_size}), .delta = {}};
  ops::gather_rows(picked.x, stream.x, rows.logit_rows, ctx);
  const Tensor normed = ctx.workspace.take(picked.x.dtype(), picked.x.shape());
  final_norm(*pass, picked, normed, Tensor(), ctx);
  head_.logits(*pass, logits, normed, ctx);
  pass->finish();
}

}  // namespace grpo::model
