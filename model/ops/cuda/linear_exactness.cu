// I in features, O out features.
#include <algorithm>

#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/matrix_library.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kProbeThreads = 256;

// Row r repeats row r % num_distinct; values in [-1, 1) from a hash of the place.
template <typename D>
__global__ void __launch_bounds__(kProbeThreads)
    fill_probe_kernel(D* x, int64_t num_distinct, int64_t columns, int64_t num_elements) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kProbeThreads + threadIdx.x;
  if (at >= num_elements) return;
  auto bits = static_cast<unsigned>(at / columns % num_distinct * columns + at % columns);
  bits = (bits ^ (bits >> 16)) * 0x7feb352du;
  bits = (bits ^ (bits >> 15)) * 0x846ca68bu;
  bits ^= bits >> 16;
  x[at] = from_float<D>(static_cast<float>(static_cast<int>(bits)) * 0x1p-31f);
}

// The first row that differs from its row of `wanted`, where `row` was num_rows before.
template <typename Word>
__global__ void __launch_bounds__(kProbeThreads)
    compare_rows_kernel(int* row, const Word* out, const Word* wanted, int64_t num_distinct,
                        int64_t columns, int64_t num_elements) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kProbeThreads + threadIdx.x;
  if (at >= num_elements) return;
  if (out[at] != wanted[at / columns % num_distinct * columns + at % columns]) {
    atomicMin(row, static_cast<int>(at / columns));
  }
}

int32_t first_different_row(const char* op, const Tensor& out, const Tensor& wanted,
                            OpContext& ctx) {
  const Workspace::Scope scope(ctx.workspace);
  const auto num_rows = static_cast<int32_t>(out.size(0));
  int32_t result = num_rows;
  const Tensor on_host(&result, DType::kInt32, {1}, Device::cpu());
  const Tensor row = ctx.workspace.take(DType::kInt32, {1});
  copy_tensor(row, on_host, ctx.stream);
  const int64_t count = out.num_elements();
  const auto compare = [&]<typename Word>(Word) {
    launch(op, compare_rows_kernel<Word>, ceil_div(count, kProbeThreads), kProbeThreads, ctx,
           row.data<int32_t>(), device_data<Word>(out), device_data<Word>(wanted), wanted.size(0),
           out.size(1), count);
  };
  if (out.dtype() == DType::kBfloat16) {
    compare(uint16_t{});
  } else {
    compare(uint32_t{});
  }
  copy_tensor(on_host, row, ctx.stream);
  return result;
}

}  // namespace

void check_linear_exactness(const LinearProbe& probe, const Tensor& weight, const Tensor& bias,
                            OpContext& ctx) {
  const char* op = "check_linear_exactness";
  const Tensor& x = probe.x;
  const Tensor& wanted = probe.wanted;
  const Tensor& out = probe.out;
  const int64_t most = x.size(0);
  const int64_t num_distinct = wanted.size(0);
  dispatch_device_type(op, x.dtype(), [&]<typename D>(D) {
    launch(op, fill_probe_kernel<D>, ceil_div(x.num_elements(), kProbeThreads), kProbeThreads, ctx,
           device_data<D>(x), num_distinct, x.size(1), x.num_elements());
  });
  linear_forward(wanted, x.rows(0, num_distinct), weight, bias, ctx);
  for (int64_t rows = 1;; rows = row_bucket(rows) + 1) {
    const int64_t count = std::min(rows == 1 ? 1 : row_bucket(rows), most);
    linear_forward(out.rows(0, count), x.rows(0, count), weight, bias, ctx);
    const int32_t row = first_different_row(op, out.rows(0, count), wanted, ctx);
    if (row != count) {
      throw CudaError(fmt::format(
          "linear_forward: row {} of {} has other bits than the same row among {}: weight {} {}, "
          "out {}, {} (at {} rows: {}); numerics cannot be exact for this shape on {}",
          row, count, num_distinct, dtype_name(weight.dtype()), weight.shape().to_string(),
          dtype_name(out.dtype()), linear_algorithm(out, x.rows(0, count), weight, bias, ctx),
          num_distinct, linear_algorithm(out, x.rows(0, num_distinct), weight, bias, ctx),
          device_name(ctx.device)));
    }
    if (count == most) return;
  }
}

}  // namespace grpo::ops::cuda
