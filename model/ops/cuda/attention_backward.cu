// bfloat16 gradients of attention on tensor cores, without atomics; see
// attention_backward.cuh.
#include "model/ops/cuda/attention_backward.cuh"

#include "model/ops/cuda/attention_plain.h"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/workspace_array.h"

namespace grpo::ops::cuda {

namespace {

// kDim / 8 threads a row.
template <int kDim>
__global__ void __launch_bounds__(kBackwardThreads)
    statistics_kernel(BackwardStatistics* statistics, const __nv_bfloat16* dout,
                      const __nv_bfloat16* out, const float* lse, int64_t num_rows) {
  constexpr int kRowLanes = kDim / 8;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kBackwardThreads + threadIdx.x;
  const int64_t row = at / kRowLanes;
  const bool inside = row < num_rows;
  float a[8];
  float b[8];
  load_group<8>(a, dout + (inside ? at * 8 : 0), inside ? 8 : 0, true);
  load_group<8>(b, out + (inside ? at * 8 : 0), inside ? 8 : 0, true);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(a[i], b[i], sum);
#pragma unroll
  for (int distance = kRowLanes / 2; distance > 0; distance /= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
  if (inside && at % kRowLanes == 0) statistics[row] = {__fmul_rn(lse[row], kLog2E), sum};
}

template <int kDim>
void launch_statistics(const char* op, BackwardStatistics* statistics,
                       const BackwardOperands& operands, const AttentionSaved& saved,
                       OpContext& ctx) {
  const int64_t num_rows = saved.out.size(0) * saved.out.size(1);
  launch(op, statistics_kernel<kDim>, ceil_div(num_rows * (kDim / 8), kBackwardThreads),
         kBackwardThreads, ctx, statistics, operands.dout, device_data<__nv_bfloat16>(saved.out),
         saved.lse.data<float>(), num_rows);
}

}  // namespace

void attention_backward(const AttentionGradients& gradients, const Tensor& dout,
                        const AttentionSaved& saved, const KvView& kv, float scale,
                        OpContext& ctx) {
  const char* op = "attention_backward";
  const Tensor& q = saved.q;
  if (q.num_elements() == 0) return;
  if (!has_tensor_core_kernel(q)) {
    attention_backward_plain(gradients, dout, saved, kv, scale, ctx);
    return;
  }
  check_tile_operands(op,
                      {&q, &saved.out, &kv.keys, &kv.values, &dout, &gradients.dq, &gradients.dkeys,
                       &gradients.dvalues},
                      scale);
  const Workspace::Scope scope(ctx.workspace);
  auto* statistics = workspace_array<BackwardStatistics>(ctx, q.size(0) * q.size(1));
  const BackwardOperands operands{.view = attention_view(q, kv),
                                  .dq = device_data<__nv_bfloat16>(gradients.dq),
                                  .dkeys = device_data<__nv_bfloat16>(gradients.dkeys),
                                  .dvalues = device_data<__nv_bfloat16>(gradients.dvalues),
                                  .q = device_data<__nv_bfloat16>(q),
                                  .keys = device_data<__nv_bfloat16>(kv.keys),
                                  .values = device_data<__nv_bfloat16>(kv.values),
                                  .dout = device_data<__nv_bfloat16>(dout),
                                  .statistics = statistics,
                                  .scale = scale,
                                  .scale_log2 = scale * kLog2E,
                                  .longest = kv.max_query_rows};
  if (q.size(2) == 64) {
    launch_statistics<64>(op, statistics, operands, saved, ctx);
  } else {
    launch_statistics<128>(op, statistics, operands, saved, ctx);
  }
  launch_key_gradients(op, operands, ctx);
  launch_query_gradient(op, operands, ctx);
}

}  // namespace grpo::ops::cuda
