#include <algorithm>
#include <cmath>

#include "model/ops/cpu/entry_points.h"
#include "model/ops/cpu/lane_sum.h"

namespace grpo::ops::cpu {

template <typename A>
void rms_norm_forward(const Tensor& out, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                      float epsilon) {
  const int64_t size = x.size(1);
  const A* weight_data = weight.data<A>();
  float* rstd_data = rstd.is_absent() ? nullptr : rstd.data<float>();
  for (int64_t t = 0; t < x.size(0); ++t) {
    const A* row = x.data<A>() + t * size;
    A* out_row = out.data<A>() + t * size;
    const auto value = [row](int64_t i) { return static_cast<float>(row[i]); };
    const float mean_square = lane_dot(size, value, value) / static_cast<float>(size);
    const float scale = 1.0f / std::sqrt(mean_square + epsilon);
    if (rstd_data != nullptr) rstd_data[t] = scale;
    for (int64_t i = 0; i < size; ++i) {
      out_row[i] =
          static_cast<A>(static_cast<float>(row[i]) * scale * static_cast<float>(weight_data[i]));
    }
  }
}

template <typename A>
void residual_rms_norm_forward(const NormedSum& out, const Tensor& x, const Tensor& addend,
                               const Tensor& weight, float epsilon) {
  residual_add<A>(out.sum, x, addend);
  rms_norm_forward<A>(out.normed, out.rstd, out.sum, weight, epsilon);
}

// With g = dout * weight and n = x * rstd: dx = rstd * (g - n * mean(g n)), dweight = sum over t of
// dout * n.
template <typename A>
void rms_norm_backward(const RmsNormGradients& gradients, const Tensor& dout, const Tensor& x,
                       const Tensor& weight, const Tensor& rstd) {
  const int64_t size = x.size(1);
  const A* weight_data = weight.data<A>();
  float* dweight = gradients.dweight.data<float>();
  if (!gradients.accumulate_dweight) std::fill_n(dweight, size, 0.0f);
  for (int64_t t = 0; t < x.size(0); ++t) {
    const A* row = x.data<A>() + t * size;
    const A* dout_row = dout.data<A>() + t * size;
    A* dx_row = gradients.dx.data<A>() + t * size;
    const float scale = rstd.data<float>()[t];
    const auto g = [&](int64_t i) {
      return static_cast<float>(dout_row[i]) * static_cast<float>(weight_data[i]);
    };
    const auto n = [&](int64_t i) { return static_cast<float>(row[i]) * scale; };
    const float mean = lane_dot(size, g, n) / static_cast<float>(size);
    for (int64_t i = 0; i < size; ++i) {
      dweight[i] = std::fma(static_cast<float>(dout_row[i]), n(i), dweight[i]);
    }
    if (gradients.accumulate_dx) {
      for (int64_t i = 0; i < size; ++i) {
        const float dx = scale * std::fma(-n(i), mean, g(i));
        dx_row[i] = static_cast<A>(static_cast<float>(dx_row[i]) + dx);
      }
    } else {
      for (int64_t i = 0; i < size; ++i) {
        dx_row[i] = static_cast<A>(scale * std::fma(-n(i), mean, g(i)));
      }
    }
  }
}

#define GRPO_INSTANTIATE_RMS_NORM(A)                                                            \
  template void rms_norm_forward<A>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, \
                                    float);                                                     \
  template void residual_rms_norm_forward<A>(const NormedSum&, const Tensor&, const Tensor&,    \
                                             const Tensor&, float);                             \
  template void rms_norm_backward<A>(const RmsNormGradients&, const Tensor&, const Tensor&,     \
                                     const Tensor&, const Tensor&);
GRPO_INSTANTIATE_RMS_NORM(float)
GRPO_INSTANTIATE_RMS_NORM(Bfloat16)
#undef GRPO_INSTANTIATE_RMS_NORM

}  // namespace grpo::ops::cpu
