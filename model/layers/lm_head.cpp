#include "model/layers/lm_head.h"

#include <algorithm>

#include "model/core/host_transfer.h"
#include "model/ops/linear.h"

namespace grpo::model {

namespace {

// The four values of each of N rows, in one tensor so that they reach the host and come back in one
// transfer each.
struct LossValues {
  explicit LossValues(const Tensor& flat)  // [4 N] float32
      : all(flat.reshaped({4, flat.size(0) / 4})) {}

  Tensor row(int64_t index) const { return all.rows(index, 1).reshaped({all.size(1)}); }

  Tensor all;  // [4, N]
};

// Sums of the softmax, which the backward takes over, of `count` rows.
Tensor take_sums(int64_t count, OpContext& ctx) {
  return ctx.workspace.take(DType::kUint8, {count, ops::kRowSumsBytes});
}

ops::TokenLogprobs logprobs_of(const LossValues& values, const Tensor& sums) {
  return {.processed = values.row(0), .unfiltered = values.row(1), .sums = sums};
}

ops::LogprobGradients gradients_of(const LossValues& values, const Tensor& sums) {
  return {.dprocessed = values.row(2), .dunfiltered = values.row(3), .sums = sums};
}

// Rows [begin, begin + N).
void evaluate(TokenLoss& loss, int64_t begin, const LossValues& values, const OpContext& ctx) {
  const HostCopy logprobs(values.all.rows(0, 2), ctx.stream);
  HostDraft gradients(values.all.rows(2, 2));
  const auto count = static_cast<size_t>(values.all.size(1));
  const std::span<const float> in(logprobs.view().data<float>(), 2 * count);
  const std::span<float> out(gradients.view().data<float>(), 2 * count);
  loss.evaluate(begin, begin + values.all.size(1),
                {.processed = in.first(count), .unfiltered = in.last(count)},
                {.dprocessed = out.first(count), .dunfiltered = out.last(count)});
  gradients.commit(ctx.stream);
}

}  // namespace

// Rows [begin, begin + count) and the tensors that belong to them.
struct LmHead::Chunk {
  int64_t begin;
  int64_t count;
  Tensor logits;                    // [count, V] float32
  Tensor dlogits;                   // [count, V] A; the logits' memory where A is float32
  ops::TokenLogprobs logprobs;      // [count]
  ops::LogprobGradients gradients;  // [count]
  GradientView weight_gradient;     // [V, D]
};

void LmHead::append_score_uses(std::vector<ParameterUse>& uses) const {
  uses.push_back({weight_, UsePhase::kForward, true, false});
}

void LmHead::append_train_uses(std::vector<ParameterUse>& uses, bool token_local) const {
  if (!token_local) uses.push_back({weight_, UsePhase::kForward, true, false});
  uses.push_back({weight_, UsePhase::kBackward, true, true});
}

void LmHead::logits(Pass& pass, const Tensor& out, const Tensor& x, OpContext& ctx) const {
  const MaterializedWeight weight = pass.use(weight_);
  ops::linear_forward(out, x, weight.tensor(), Tensor(), ctx);
}

void LmHead::check_filter(const HeadTargets& targets, const Chunk& chunk, OpContext& ctx) const {
  FilterCheck& check = *targets.filter_check;
  ops::KeptTokens recomputed;
  ops::filter_tokens(recomputed, chunk.logits, check.filter, ctx);
  const ops::KeptTokensView own = recomputed.view();
  const ops::KeptTokensView stored = targets.kept.rows(chunk.begin, chunk.count);
  for (int64_t row = 0; row < chunk.count; ++row) {
    ++check.num_checked;
    if (!ops::same_tokens(own, stored, row)) ++check.num_differing;
  }
}

void LmHead::chunk_logprobs(const Tensor& weight, const Tensor& x, const HeadTargets& targets,
                            const Chunk& chunk, OpContext& ctx) const {
  ops::linear_forward(chunk.logits, x.rows(chunk.begin, chunk.count), weight, Tensor(), ctx);
  ops::token_logprobs(chunk.logprobs, chunk.logits, targets.targets.rows(chunk.begin, chunk.count),
                      targets.kept.rows(chunk.begin, chunk.count), targets.inv_temperature, ctx);
  if (targets.filter_check != nullptr && !targets.kept.is_absent()) {
    check_filter(targets, chunk, ctx);
  }
}

void LmHead::chunk_backward(const Tensor& weight, const Tensor& dx, const Tensor& x,
                            const HeadTargets& targets, const Chunk& chunk, OpContext& ctx) const {
  ops::token_logprobs_backward(
      chunk.dlogits, chunk.logits, chunk.gradients, targets.targets.rows(chunk.begin, chunk.count),
      targets.kept.rows(chunk.begin, chunk.count), targets.inv_temperature, ctx);
  ops::linear_backward_input(dx.rows(chunk.begin, chunk.count), chunk.dlogits, weight, false, ctx);
  ops::linear_backward_weight(chunk.weight_gradient.tensor, chunk.dlogits,
                              x.rows(chunk.begin, chunk.count), chunk.weight_gradient.accumulate,
                              ctx);
}

LmHead::LogitBuffers LmHead::take_buffers(int64_t rows, DType dtype, OpContext& ctx) const {
  const Shape shape{std::min(rows, chunk_rows_), vocab_size_};
  const auto take = [&](DType of) { return ctx.workspace.take(of, shape, ScratchOwner::kLogits); };
  const Tensor logits = take(DType::kFloat32);
  return {logits, dtype == DType::kFloat32 ? logits : take(dtype)};
}

void LmHead::score(Pass& pass, const ops::TokenLogprobs& out, const Tensor& x,
                   const HeadTargets& targets, OpContext& ctx) const {
  const Workspace::Scope scope(ctx.workspace);
  const int64_t rows = x.size(0);
  const Tensor logits = ctx.workspace.take(
      DType::kFloat32, {std::min(rows, chunk_rows_), vocab_size_}, ScratchOwner::kLogits);
  const MaterializedWeight weight = pass.use(weight_);
  for (int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, rows - begin);
    chunk_logprobs(
        weight.tensor(), x, targets,
        {.begin = begin,
         .count = count,
         .logits = logits.rows(0, count),
         .dlogits = {},
         .logprobs = {.processed = out.processed.rows(begin, count),
                      .unfiltered = out.unfiltered.rows(begin, count),
                      .sums = out.sums.is_absent() ? Tensor() : out.sums.rows(begin, count)},
         .gradients = {},
         .weight_gradient = {}},
        ctx);
  }
}

void LmHead::train(Pass& pass, const Tensor& dx, const Tensor& x, const HeadTargets& targets,
                   TokenLoss& loss, OpContext& ctx) const {
  const Workspace::Scope scope(ctx.workspace);
  if (loss.is_token_local()) {
    train_single_pass(pass, dx, x, targets, loss, ctx);
  } else {
    train_two_pass(pass, dx, x, targets, loss, ctx);
  }
}

void LmHead::train_single_pass(Pass& pass, const Tensor& dx, const Tensor& x,
                               const HeadTargets& targets, TokenLoss& loss, OpContext& ctx) const {
  const int64_t rows = x.size(0);
  const int64_t chunk_rows = std::min(rows, chunk_rows_);
  const LogitBuffers buffers = take_buffers(rows, x.dtype(), ctx);
  const Tensor flat_values = ctx.workspace.take(DType::kFloat32, {4 * chunk_rows});
  const Tensor all_sums = take_sums(chunk_rows, ctx);
  const MaterializedWeight weight = pass.use(weight_);
  GradientView weight_gradient = pass.begin_grad(weight_);
  for (int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, rows - begin);
    const LossValues values(flat_values.rows(0, 4 * count));
    const Tensor sums = all_sums.rows(0, count);
    const Chunk chunk{.begin = begin,
                      .count = count,
                      .logits = buffers.logits.rows(0, count),
                      .dlogits = buffers.dlogits.rows(0, count),
                      .logprobs = logprobs_of(values, sums),
                      .gradients = gradients_of(values, sums),
                      .weight_gradient = weight_gradient};
    chunk_logprobs(weight.tensor(), x, targets, chunk, ctx);
    evaluate(loss, begin, values, ctx);
    chunk_backward(weight.tensor(), dx, x, targets, chunk, ctx);
    weight_gradient.accumulate = true;
  }
  if (rows == 0 && !weight_gradient.accumulate) fill_zero(weight_gradient.tensor, ctx.stream);
  pass.finish_grad(weight_);
}

void LmHead::train_two_pass(Pass& pass, const Tensor& dx, const Tensor& x,
                            const HeadTargets& targets, TokenLoss& loss, OpContext& ctx) const {
  const int64_t rows = x.size(0);
  const LossValues values(ctx.workspace.take(DType::kFloat32, {4 * rows}));
  const Tensor sums = take_sums(rows, ctx);
  const ops::LogprobGradients gradients = gradients_of(values, sums);
  score(pass, logprobs_of(values, sums), x, targets, ctx);
  evaluate(loss, 0, values, ctx);
  const LogitBuffers buffers = take_buffers(rows, x.dtype(), ctx);
  const MaterializedWeight weight = pass.use(weight_);
  GradientView weight_gradient = pass.begin_grad(weight_);
  for (int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, rows - begin);
    const Chunk chunk{.begin = begin,
                      .count = count,
                      .logits = buffers.logits.rows(0, count),
                      .dlogits = buffers.dlogits.rows(0, count),
                      .logprobs = {},
                      .gradients = {.dprocessed = gradients.dprocessed.rows(begin, count),
                                    .dunfiltered = gradients.dunfiltered.rows(begin, count),
                                    .sums = gradients.sums.rows(begin, count)},
                      .weight_gradient = weight_gradient};
    ops::linear_forward(chunk.logits, x.rows(begin, count), weight.tensor(), Tensor(), ctx);
    chunk_backward(weight.tensor(), dx, x, targets, chunk, ctx);
    weight_gradient.accumulate = true;
  }
  if (rows == 0 && !weight_gradient.accumulate) fill_zero(weight_gradient.tensor, ctx.stream);
  pass.finish_grad(weight_);
}

}  // namespace grpo::model
