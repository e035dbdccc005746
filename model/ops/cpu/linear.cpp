#include "model/ops/linear.h"

#include <algorithm>
#include <array>
#include <utility>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cpu/matrix_product.h"

namespace grpo::ops::cpu {

namespace {

bool splits_chains(const Tensor& x, const Numerics& numerics) {
  return numerics.split_k == SplitK::kForced && x.size(0) <= kMaxSplitRows && x.size(1) > 1;
}

// One chain over features [begin, end) for each element; store as matrix_product's.
template <typename A, typename Store>
void multiply_features(const Tensor& x, const Tensor& weight, int64_t begin, int64_t end,
                       Workspace& workspace, Store&& store) {
  const int64_t in_features = x.size(1);
  matrix_product({x.size(0), weight.size(0), end - begin},
                 StridedMatrix<A>{x.data<A>() + begin, in_features, 1},
                 StridedMatrix<A>{weight.data<A>() + begin, 1, in_features}, workspace,
                 std::forward<Store>(store));
}

}  // namespace

template <typename A, typename Out>
void linear_forward(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    OpContext& ctx) {
  const int64_t in_features = x.size(1);
  const int64_t out_features = weight.size(0);
  const A* bias_data = bias.is_absent() ? nullptr : bias.data<A>();
  Out* out_data = out.data<Out>();
  const auto store = [&](int64_t t, int64_t o, int64_t columns, const float* sums) {
    Out* row = out_data + t * out_features + o;
    if (bias_data == nullptr) {
      for (int64_t c = 0; c < columns; ++c) row[c] = static_cast<Out>(sums[c]);
    } else {
      for (int64_t c = 0; c < columns; ++c) {
        row[c] = static_cast<Out>(sums[c] + static_cast<float>(bias_data[o + c]));
      }
    }
  };
  if (!splits_chains(x, ctx.numerics)) {
    multiply_features<A>(x, weight, 0, in_features, ctx.workspace, store);
    return;
  }
  const Workspace::Scope scope(ctx.workspace);
  float* first_sums =
      ctx.workspace.take(DType::kFloat32, out.shape()).template data<float>();  // [T, O]
  multiply_features<A>(x, weight, 0, in_features / 2, ctx.workspace,
                       [&](int64_t t, int64_t o, int64_t columns, const float* sums) {
                         std::copy_n(sums, columns, first_sums + t * out_features + o);
                       });
  multiply_features<A>(x, weight, in_features / 2, in_features, ctx.workspace,
                       [&](int64_t t, int64_t o, int64_t columns, const float* sums) {
                         const float* first = first_sums + t * out_features + o;
                         std::array<float, kPanelColumns> both;
                         for (int64_t c = 0; c < columns; ++c) {
                           both[static_cast<size_t>(c)] = first[c] + sums[c];
                         }
                         store(t, o, columns, both.data());
                       });
}

namespace {

// The end of both backward products: overwrite or add, rounded once.
template <typename T>
void store_gradient(T* row, const float* sums, int64_t columns, bool accumulate) {
  if (accumulate) {
    for (int64_t c = 0; c < columns; ++c)
      row[c] = static_cast<T>(static_cast<float>(row[c]) + sums[c]);
  } else {
    for (int64_t c = 0; c < columns; ++c) row[c] = static_cast<T>(sums[c]);
  }
}

}  // namespace

template <typename A, typename G>
void linear_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& weight,
                           bool accumulate, OpContext& ctx) {
  const int64_t in_features = weight.size(1);
  const int64_t out_features = weight.size(0);
  A* dx_data = dx.data<A>();
  matrix_product({dx.size(0), in_features, out_features},
                 StridedMatrix<G>{dout.data<G>(), out_features, 1},
                 StridedMatrix<A>{weight.data<A>(), in_features, 1}, ctx.workspace,
                 [&](int64_t t, int64_t i, int64_t columns, const float* sums) {
                   store_gradient(dx_data + t * in_features + i, sums, columns, accumulate);
                 });
}

template <typename A, typename G>
void linear_backward_weight(const Tensor& dweight, const Tensor& dout, const Tensor& x,
                            bool accumulate, OpContext& ctx) {
  const int64_t in_features = x.size(1);
  const int64_t out_features = dout.size(1);
  float* dweight_data = dweight.data<float>();
  matrix_product({out_features, in_features, x.size(0)},
                 StridedMatrix<G>{dout.data<G>(), 1, out_features},
                 StridedMatrix<A>{x.data<A>(), in_features, 1}, ctx.workspace,
                 [&](int64_t o, int64_t i, int64_t columns, const float* sums) {
                   store_gradient(dweight_data + o * in_features + i, sums, columns, accumulate);
                 });
}

template <typename G>
void linear_backward_bias(const Tensor& dbias, const Tensor& dout, bool accumulate) {
  const int64_t out_features = dout.size(1);
  const G* dout_data = dout.data<G>();
  float* sums = dbias.data<float>();
  if (!accumulate) std::fill_n(sums, out_features, 0.0f);
  for (int64_t t = 0; t < dout.size(0); ++t) {
    const G* row = dout_data + t * out_features;
    for (int64_t o = 0; o < out_features; ++o) sums[o] += static_cast<float>(row[o]);
  }
}

#define GRPO_INSTANTIATE_LINEAR(A, G)                                                            \
  template void linear_forward<A, G>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, \
                                     OpContext&);                                                \
  template void linear_backward_input<A, G>(const Tensor&, const Tensor&, const Tensor&, bool,   \
                                            OpContext&);                                         \
  template void linear_backward_weight<A, G>(const Tensor&, const Tensor&, const Tensor&, bool,  \
                                             OpContext&);
GRPO_INSTANTIATE_LINEAR(float, float)
GRPO_INSTANTIATE_LINEAR(Bfloat16, float)
GRPO_INSTANTIATE_LINEAR(Bfloat16, Bfloat16)
#undef GRPO_INSTANTIATE_LINEAR
template void linear_backward_bias<float>(const Tensor&, const Tensor&, bool);
template void linear_backward_bias<Bfloat16>(const Tensor&, const Tensor&, bool);

}  // namespace grpo::ops::cpu
