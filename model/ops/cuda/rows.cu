// One block a picked row.
#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/cuda/index_check.cuh"

namespace grpo::ops::cuda {

namespace {

constexpr int kCopyThreads = 128;

// Gather: out[i] = x[indices[i]]; scatter: out[indices[i]] = x[i]. Rows of row_size units, limit
// rows to pick from.
template <bool kGather, typename Unit>
__global__ void __launch_bounds__(kCopyThreads)
    copy_rows_kernel(Unit* out, const Unit* x, const int32_t* indices, int64_t row_size,
                     int64_t limit) {
  const int64_t i = blockIdx.x;
  const int64_t index = indices[i];
  check_index(index, i, limit);
  const Unit* from = x + (kGather ? index : i) * row_size;
  Unit* to = out + (kGather ? i : index) * row_size;
  for (int64_t at = threadIdx.x; at < row_size; at += kCopyThreads) to[at] = from[at];
}

template <bool kGather>
void copy_rows(const char* op, const Tensor& out, const Tensor& x, const Tensor& indices,
               OpContext& ctx) {
  const int64_t limit = kGather ? x.size(0) : out.size(0);
  const int64_t num_rows = x.size(1) == 0 ? 0 : indices.size(0);
  const int32_t* index = indices.data<int32_t>();
  dispatch_device_type(op, x.dtype(), [&]<typename D>(D) {
    constexpr int kWidth = kGroupWidth<D>;
    D* to = device_data<D>(out);
    const D* from = device_data<D>(x);
    if (x.size(1) % kWidth == 0 && is_aligned<kWidth>(to) && is_aligned<kWidth>(from)) {
      launch(op, copy_rows_kernel<kGather, uint4>, num_rows, kCopyThreads, ctx,
             reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), index,
             x.size(1) / kWidth, limit);
    } else {
      launch(op, copy_rows_kernel<kGather, D>, num_rows, kCopyThreads, ctx, to, from, index,
             x.size(1), limit);
    }
  });
}

}  // namespace

void gather_rows(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext& ctx) {
  copy_rows<true>("gather_rows", out, x, indices, ctx);
}

void scatter_rows(const Tensor& out, const Tensor& x, const Tensor& indices, OpContext& ctx) {
  fill_zero(out, ctx.stream);
  copy_rows<false>("scatter_rows", out, x, indices, ctx);
}

}  // namespace grpo::ops::cuda
