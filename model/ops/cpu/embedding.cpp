#include <algorithm>

#include "model/core/errors.h"
#include "model/ops/cpu/entry_points.h"

namespace grpo::ops::cpu {

namespace {

void check_token(const char* op, int64_t t, int32_t token, int64_t vocabulary) {
  CHECK(token >= 0 && token < vocabulary, "{}: token {} at row {} is outside [0, {})", op, token, t,
        vocabulary);
}

}  // namespace

template <typename A>
void embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& weight) {
  const int64_t size = weight.size(1);
  for (int64_t t = 0; t < out.size(0); ++t) {
    const int32_t token = tokens.data<int32_t>()[t];
    check_token("embedding_forward", t, token, weight.size(0));
    std::copy_n(weight.data<A>() + token * size, size, out.data<A>() + t * size);
  }
}

// Rows are visited by (token, t), so each row of dweight is finished in one go.
template <typename A>
void embedding_backward(const Tensor& dweight, const Tensor& dout, const Tensor& tokens,
                        bool accumulate, OpContext& ctx) {
  const int64_t num_tokens = dout.size(0);
  const int64_t size = dweight.size(1);
  const Workspace::Scope scope(ctx.workspace);
  int64_t* order = ctx.workspace.take(DType::kInt64, {num_tokens}).data<int64_t>();
  if (ctx.device.is_rehearsal) return;
  if (!accumulate) fill_zero(dweight);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int32_t token = tokens.data<int32_t>()[t];
    check_token("embedding_backward", t, token, dweight.size(0));
    order[t] = static_cast<int64_t>(token) << 32 | t;
  }
  std::sort(order, order + num_tokens);
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t t = order[i] & 0xffffffff;
    const A* source = dout.data<A>() + t * size;
    float* sums = dweight.data<float>() + (order[i] >> 32) * size;
    for (int64_t d = 0; d < size; ++d) sums[d] += static_cast<float>(source[d]);
  }
}

#define GRPO_INSTANTIATE_EMBEDDING(A)                                                    \
  template void embedding_forward<A>(const Tensor&, const Tensor&, const Tensor&);       \
  template void embedding_backward<A>(const Tensor&, const Tensor&, const Tensor&, bool, \
                                      OpContext&);
GRPO_INSTANTIATE_EMBEDDING(float)
GRPO_INSTANTIATE_EMBEDDING(Bfloat16)
#undef GRPO_INSTANTIATE_EMBEDDING

}  // namespace grpo::ops::cpu
