#include "model/ops/log_softmax.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"
#include "model/ops/softmax_order.h"

namespace grpo::ops {

namespace {

void check_logits(const OperandChecks& checks, const char* op, const Tensor& logits) {
  checks.expect_rank("logits", logits, 2);
  checks.expect("logits", logits, DType::kFloat32, logits.shape());
  CHECK(logits.size(1) > 0 && logits.size(1) <= kMaxVocabulary,
        "{}: a vocabulary of {} tokens, wanted 1 to {}", op, logits.size(1), kMaxVocabulary);
}

void check_kept(const char* op, const KeptTokensView& kept, const Tensor& logits) {
  CHECK(kept.is_absent() || kept.num_rows == logits.size(0),
        "{}: kept tokens of {} rows, logits of {}", op, kept.num_rows, logits.size(0));
}

void check_inv_temperature(const char* op, float inv_temperature) {
  CHECK(inv_temperature > 0.0f && inv_temperature < std::numeric_limits<float>::infinity(),
        "{}: inverse temperature {}, wanted above 0 and finite", op, inv_temperature);
}

}  // namespace

void filter_tokens(KeptTokens& kept, const Tensor& logits, const SamplingFilter& filter,
                   OpContext& ctx) {
  const char* op = "filter_tokens";
  check_logits(OperandChecks(op, ctx), op, logits);
  check_inv_temperature(op, filter.inv_temperature());
  CHECK(filter.top_k >= 0, "{}: top_k {}", op, filter.top_k);
  CHECK(filter.top_p > 0.0 && filter.top_p <= 1.0, "{}: top_p {}, wanted in (0, 1]", op,
        filter.top_p);
  dispatch_device<Scratch::kTakes>(
      ctx, [&] { cpu::filter_tokens(kept, logits, filter, ctx); },
      [&] { cuda::filter_tokens(kept, logits, filter, ctx); });
  if (ctx.device.is_rehearsal) kept.append_everything(logits.size(0));
}

void token_logprobs(const TokenLogprobs& out, const Tensor& logits, const Tensor& targets,
                    const KeptTokensView& kept, float inv_temperature, OpContext& ctx) {
  const char* op = "token_logprobs";
  const OperandChecks checks(op, ctx);
  check_logits(checks, op, logits);
  check_inv_temperature(op, inv_temperature);
  check_kept(op, kept, logits);
  checks.expect("processed", out.processed, DType::kFloat32, {logits.size(0)});
  checks.expect("unfiltered", out.unfiltered, DType::kFloat32, {logits.size(0)});
  checks.expect_if_present("sums", out.sums, DType::kUint8, {logits.size(0), kRowSumsBytes});
  checks.expect("targets", targets, DType::kInt32, {logits.size(0)});
  dispatch_device(
      ctx, [&] { cpu::token_logprobs(out, logits, targets, kept, inv_temperature); },
      [&] { cuda::token_logprobs(out, logits, targets, kept, inv_temperature, ctx); });
}

void token_logprobs_backward(const Tensor& dlogits, const Tensor& logits,
                             const LogprobGradients& gradients, const Tensor& targets,
                             const KeptTokensView& kept, float inv_temperature, OpContext& ctx) {
  const char* op = "token_logprobs_backward";
  const OperandChecks checks(op, ctx);
  check_logits(checks, op, logits);
  check_inv_temperature(op, inv_temperature);
  check_kept(op, kept, logits);
  checks.expect_activation("dlogits", dlogits);
  checks.expect("dlogits", dlogits, dlogits.dtype(), logits.shape());
  checks.expect("dprocessed", gradients.dprocessed, DType::kFloat32, {logits.size(0)});
  checks.expect_if_present("dunfiltered", gradients.dunfiltered, DType::kFloat32, {logits.size(0)});
  checks.expect_if_present("sums", gradients.sums, DType::kUint8, {logits.size(0), kRowSumsBytes});
  checks.expect("targets", targets, DType::kInt32, {logits.size(0)});
  dispatch(
      op, dlogits.dtype(), ctx,
      [&]<typename A>(A) {
        cpu::token_logprobs_backward<A>(dlogits, logits, gradients, targets, kept, inv_temperature);
      },
      [&] {
        cuda::token_logprobs_backward(dlogits, logits, gradients, targets, kept, inv_temperature,
                                      ctx);
      });
}

}  // namespace grpo::ops
