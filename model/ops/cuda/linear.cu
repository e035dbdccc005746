// float32 operands go through float_product, bfloat16 ones through cuBLASLt. The library only
// ever sees rows aligned to 16 bytes and widths that are multiples of 8: other operands are copied
// with zeros behind them, which change no sum, and such a result is finished from a float32 copy.
// So a shape's algorithms are of one class wherever its operands lie.
// T tokens, I in features, O out features.
#include "model/ops/cuda/element_groups.cuh"
#include "model/ops/cuda/entry_points.h"
#include "model/ops/cuda/float_product.h"
#include "model/ops/matrix_library.h"
#include "model/ops/reduce.h"

namespace grpo::ops::cuda {

namespace {

constexpr int kCopyThreads = 256;
constexpr int64_t kWidthMultiple = 8;  // bfloat16 elements in 16 bytes

int64_t padded(int64_t size) { return ceil_div(size, kWidthMultiple) * kWidthMultiple; }

bool is_library_aligned(const Tensor& tensor) {
  return tensor.size(tensor.rank() - 1) % kWidthMultiple == 0 &&
         reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0;
}

MatrixLibrary& library(const char* op, const OpContext& ctx) {
  CHECK(ctx.matrix_library != nullptr, "{}: the context of {} has no matrix library", op,
        device_name(ctx.device));
  return *ctx.matrix_library;
}

// to [to_rows, to_columns] = from [rows, columns], zeros around it.
template <typename S>
__global__ void __launch_bounds__(kCopyThreads)
    pad_kernel(__nv_bfloat16* to, const S* from, int64_t rows, int64_t columns, int64_t to_columns,
               int64_t to_elements) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (at >= to_elements) return;
  const int64_t row = at / to_columns;
  const int64_t column = at % to_columns;
  const bool inside = row < rows && column < columns;
  to[at] = __float2bfloat16_rn(inside ? to_float(from[row * columns + column]) : 0.0f);
}

// A matrix for the library: the tensor itself if it is aligned bfloat16, else a copy in the
// workspace. A float32 one (a gradient of logits) is rounded once. `pads_rows` where the number of
// rows must be a multiple too.
Tensor library_operand(const char* op, const Tensor& tensor, bool pads_rows, OpContext& ctx) {
  const int64_t rows = tensor.rank() == 1 ? 1 : tensor.size(0);
  const int64_t columns = tensor.size(tensor.rank() - 1);
  const int64_t to_rows = pads_rows ? padded(rows) : rows;
  const bool fits = is_library_aligned(tensor) && to_rows == rows;
  if (fits && tensor.dtype() == DType::kBfloat16) return tensor;
  const Tensor copy = ctx.workspace.take(DType::kBfloat16, {to_rows, padded(columns)});
  if (fits) {
    convert(copy, tensor, ctx);
    return copy;
  }
  dispatch_device_type(op, tensor.dtype(), [&]<typename S>(S) {
    launch(op, pad_kernel<S>, ceil_div(copy.num_elements(), kCopyThreads), kCopyThreads, ctx,
           device_data<__nv_bfloat16>(copy), device_data<S>(tensor), rows, columns, copy.size(1),
           copy.num_elements());
  });
  return copy;
}

// out [rows, columns] = (out +) sums (+ bias), rounded once; rows of sums are `stride` apart.
template <typename D>
__global__ void __launch_bounds__(kCopyThreads)
    finish_kernel(D* out, const float* sums, const D* bias, int64_t columns, int64_t stride,
                  int64_t num_elements, bool accumulate) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (at >= num_elements) return;
  const int64_t column = at % columns;
  float sum = sums[at / columns * stride + column];
  if (bias != nullptr) sum = __fadd_rn(sum, to_float(bias[column]));
  if (accumulate) sum = __fadd_rn(to_float(out[at]), sum);
  out[at] = from_float<D>(sum);
}

// As finish_kernel, for a float32 out of bfloat16 operands: the bias is bfloat16.
__global__ void __launch_bounds__(kCopyThreads)
    add_bias_kernel(float* out, const float* sums, const __nv_bfloat16* bias, int64_t columns,
                    int64_t stride, int64_t num_elements) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (at >= num_elements) return;
  const int64_t column = at % columns;
  out[at] = __fadd_rn(sums[at / columns * stride + column], __bfloat162float(bias[column]));
}

void finish(const char* op, const Tensor& out, const Tensor& sums, const Tensor& bias,
            bool accumulate, OpContext& ctx) {
  const int64_t columns = out.size(1);
  const int64_t count = out.num_elements();
  const int64_t blocks = ceil_div(count, kCopyThreads);
  if (out.dtype() == DType::kFloat32 && !bias.is_absent()) {
    launch(op, add_bias_kernel, blocks, kCopyThreads, ctx, out.data<float>(), sums.data<float>(),
           device_data<__nv_bfloat16>(bias), columns, sums.size(1), count);
    return;
  }
  dispatch_device_type(op, out.dtype(), [&]<typename D>(D) {
    launch(op, finish_kernel<D>, blocks, kCopyThreads, ctx, device_data<D>(out), sums.data<float>(),
           bias.is_absent() ? nullptr : device_data<D>(bias), columns, sums.size(1), count,
           accumulate);
  });
}

// Runs the product into `out`, or into a float32 copy that is then finished, where out is not
// aligned, takes a bias that the library cannot add, or is bfloat16 and added to: the library
// rounds such a product before it adds (seen on an H200).
void multiply_into(MatrixProduct product, const Tensor& out, const Tensor& bias, OpContext& ctx) {
  const bool adds_bias_after = !bias.is_absent() && out.dtype() == DType::kFloat32;
  const bool fits = is_library_aligned(out) && product.m == out.size(0);
  const bool adds_rounded = product.accumulate && out.dtype() == DType::kBfloat16;
  if (fits && !adds_bias_after && !adds_rounded) {
    product.c = out.raw();
    product.c_dtype = out.dtype();
    product.c_stride = out.size(1);
    product.bias = bias.is_absent() ? nullptr : library_operand(product.op, bias, false, ctx).raw();
    library(product.op, ctx).multiply(product, ctx);
    return;
  }
  const bool accumulate = product.accumulate;
  const Tensor sums = ctx.workspace.take(DType::kFloat32, {product.m, product.n});
  product.c = sums.raw();
  product.c_dtype = DType::kFloat32;
  product.c_stride = product.n;
  product.accumulate = false;
  library(product.op, ctx).multiply(product, ctx);
  finish(product.op, out, sums, bias, accumulate, ctx);
}

StoredMatrix stored(const Tensor& matrix, bool transposed) {
  return {matrix.raw(), matrix.size(1), transposed};
}

MatrixProduct forward_product(const char* op, const Tensor& x, const Tensor& weight,
                              const OpContext& ctx) {
  MatrixProduct product{};
  product.op = op;
  product.m = x.size(0);
  product.n = weight.size(0);
  product.k = x.size(1);
  product.a = stored(x, false);
  product.b = stored(weight, true);
  product.split_k = ctx.numerics.split_k;
  return product;
}

// Features [begin, end) of x and weight, in float32.
FloatProduct forward_chains(const Tensor& out, const Tensor& x, const Tensor& weight,
                            const Tensor& bias, int64_t begin, int64_t end) {
  return {.m = x.size(0),
          .n = weight.size(0),
          .k = end - begin,
          .a = {x.data<float>() + begin, x.size(1), 1},
          .b = {weight.data<float>() + begin, 1, x.size(1)},
          .c = out.data<float>(),
          .accumulate = begin > 0,
          .bias = bias.is_absent() ? nullptr : bias.data<float>()};
}

void multiply_floats(const char* op, const Tensor& out, const Tensor& x, const Tensor& weight,
                     const Tensor& bias, OpContext& ctx) {
  int64_t begin = 0;
  if (ctx.numerics.split_k == SplitK::kForced && x.size(0) <= kMaxSplitRows) {
    begin = x.size(1) / 2;
    if (begin > 0) {
      float_product(op, forward_chains(out, x, weight, Tensor(), 0, begin), ctx);
    }
  }
  float_product(op, forward_chains(out, x, weight, bias, begin, x.size(1)), ctx);
}

}  // namespace

std::string linear_algorithm(const Tensor& out, const Tensor& x, const Tensor& weight,
                             const Tensor& bias, OpContext& ctx) {
  if (x.dtype() == DType::kFloat32) return "float32 chains on CUDA cores";
  MatrixProduct product = forward_product("linear_forward", x, weight, ctx);
  product.n = padded(product.n);
  product.k = padded(product.k);
  product.a.stride = product.b.stride = product.k;
  product.c_stride = product.n;
  product.c_dtype = is_library_aligned(out) ? out.dtype() : DType::kFloat32;
  product.bias = product.c_dtype == DType::kBfloat16 ? bias.raw() : nullptr;
  return library(product.op, ctx).describe(product);
}

void linear_forward(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    OpContext& ctx) {
  const char* op = "linear_forward";
  if (out.num_elements() == 0) return;
  if (x.dtype() == DType::kFloat32) {
    multiply_floats(op, out, x, weight, bias, ctx);
    return;
  }
  const Workspace::Scope scope(ctx.workspace);
  const MatrixProduct product = forward_product(op, library_operand(op, x, false, ctx),
                                                library_operand(op, weight, true, ctx), ctx);
  multiply_into(product, out, bias, ctx);
}

void linear_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& weight,
                           bool accumulate, OpContext& ctx) {
  const char* op = "linear_backward_input";
  if (dx.num_elements() == 0) return;
  if (dx.dtype() == DType::kFloat32) {
    const int64_t in = weight.size(1);
    const int64_t out = weight.size(0);
    float_product(op,
                  {.m = dx.size(0),
                   .n = in,
                   .k = out,
                   .a = {dout.data<float>(), out, 1},
                   .b = {weight.data<float>(), in, 1},
                   .c = dx.data<float>(),
                   .accumulate = accumulate,
                   .bias = nullptr},
                  ctx);
    return;
  }
  const Workspace::Scope scope(ctx.workspace);
  const Tensor left = library_operand(op, dout, false, ctx);
  const Tensor right = library_operand(op, weight, true, ctx);
  MatrixProduct product{};
  product.op = op;
  product.split_k = SplitK::kAllowed;
  product.m = left.size(0);
  product.n = right.size(1);
  product.k = right.size(0);
  product.a = stored(left, false);
  product.b = stored(right, false);
  product.accumulate = accumulate;
  multiply_into(product, dx, Tensor(), ctx);
}

void linear_backward_weight(const Tensor& dweight, const Tensor& dout, const Tensor& x,
                            bool accumulate, OpContext& ctx) {
  const char* op = "linear_backward_weight";
  if (x.size(0) == 0) {
    if (!accumulate) fill_zero(dweight, ctx.stream);
    return;
  }
  if (dweight.num_elements() == 0) return;
  if (x.dtype() == DType::kFloat32) {
    const int64_t in = x.size(1);
    const int64_t out = dout.size(1);
    float_product(op,
                  {.m = out,
                   .n = in,
                   .k = x.size(0),
                   .a = {dout.data<float>(), 1, out},
                   .b = {x.data<float>(), in, 1},
                   .c = dweight.data<float>(),
                   .accumulate = accumulate,
                   .bias = nullptr},
                  ctx);
    return;
  }
  const Workspace::Scope scope(ctx.workspace);
  const Tensor left = library_operand(op, dout, false, ctx);
  const Tensor right = library_operand(op, x, false, ctx);
  MatrixProduct product{};
  product.op = op;
  product.split_k = SplitK::kAllowed;
  product.m = left.size(1);
  product.n = right.size(1);
  product.k = x.size(0);
  product.a = stored(left, true);
  product.b = stored(right, false);
  product.sums_rows = true;
  product.accumulate = accumulate;
  multiply_into(product, dweight, Tensor(), ctx);
}

}  // namespace grpo::ops::cuda
