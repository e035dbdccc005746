#include "model/ops/sampler.h"

#include "model/ops/dispatch.h"
#include "model/ops/operand_checks.h"
#include "model/ops/sampler_cpu.h"
#include "model/ops/sampler_cuda.h"
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

}  // namespace

void sample_tokens(SampledToken* out, const Tensor& logits, const double* uniforms,
                   const SamplingFilter& filter, OpContext& ctx) {
  const char* op = "sample_tokens";
  check_logits(op, logits, ctx);
  CHECK(filter.temperature > 0.0f && filter.top_k >= 0 && filter.top_p > 0.0 && filter.top_p <= 1.0,
        "{}: temperature {}, top_k {}, top_p {}", op, filter.temperature, filter.top_k,
        filter.top_p);
  for (int64_t t = 0; t < logits.size(0); ++t) {
    CHECK(uniforms[t] >= 0.0 && uniforms[t] < 1.0, "{}: uniform {} of row {} is outside [0, 1)", op,
          uniforms[t], t);
  }
  dispatch_device<Scratch::kTakes>(
      ctx, [&] { sample_tokens_cpu(out, logits, uniforms, filter, ctx); },
      [&] { sample_tokens_cuda(out, logits, uniforms, filter, ctx); });
}

void argmax_tokens(SampledToken* out, const Tensor& logits, OpContext& ctx) {
  const char* op = "argmax_tokens";
  check_logits(op, logits, ctx);
  dispatch_device(
      ctx, [&] { argmax_tokens_cpu(out, logits); }, [&] { argmax_tokens_cuda(out, logits, ctx); });
}

}  // namespace grpo::ops
