#include "model/ops/sampler.h"

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"
#include "model/ops/softmax_order.h"

namespace grpo::ops {

namespace {

void check_logits(const char* op, const Tensor& logits, const OpContext& ctx) {
  const OperandChecks checks(op, ctx);
  checks.expect_rank("logits", logits, 2);
  checks.expect("logits", logits, DType::kFloat32, logits.shape());
  CHECK(logits.size(1) > 0 && logits.size(1) <= kMaxVocabulary,
        "{}: a vocabulary of {} tokens, wanted 1 to {}", op, logits.size(1), kMaxVocabulary);
}

void check_draws(const char* op, std::span<const TokenDraw> draws, int64_t num_rows) {
  int64_t rows_drawn_from = 0;
  for (size_t i = 0; i < draws.size(); ++i) {
    CHECK(draws[i].uniform >= 0.0 && draws[i].uniform < 1.0,
          "{}: uniform {} of draw {} is outside [0, 1)", op, draws[i].uniform, i);
    const int64_t row = draws[i].row;
    CHECK(row == rows_drawn_from || (row == rows_drawn_from - 1 && row >= 0),
          "{}: draw {} is of row {}, after draws of the first {} rows", op, i, row,
          rows_drawn_from);
    if (row == rows_drawn_from) ++rows_drawn_from;
  }
  CHECK(rows_drawn_from == num_rows, "{}: draws of {} rows, logits of {}", op, rows_drawn_from,
        num_rows);
}

}  // namespace

void sample_tokens(SampledToken* out, KeptTokens* kept, const Tensor& logits,
                   std::span<const TokenDraw> draws, const SamplingFilter& filter, OpContext& ctx) {
  const char* op = "sample_tokens";
  check_logits(op, logits, ctx);
  CHECK(filter.temperature > 0.0f && filter.top_k >= 0 && filter.top_p > 0.0 && filter.top_p <= 1.0,
        "{}: temperature {}, top_k {}, top_p {}", op, filter.temperature, filter.top_k,
        filter.top_p);
  check_draws(op, draws, logits.size(0));
  dispatch_device<Scratch::kTakes>(
      ctx, [&] { cpu::sample_tokens(out, kept, logits, draws, filter, ctx); },
      [&] { cuda::sample_tokens(out, kept, logits, draws, filter, ctx); });
  if (ctx.device.is_rehearsal && kept != nullptr) kept->append_everything(logits.size(0));
}

void argmax_tokens(SampledToken* out, const Tensor& logits, OpContext& ctx) {
  const char* op = "argmax_tokens";
  check_logits(op, logits, ctx);
  dispatch_device(
      ctx, [&] { cpu::argmax_tokens(out, logits); },
      [&] { cuda::argmax_tokens(out, logits, ctx); });
}

}  // namespace grpo::ops
