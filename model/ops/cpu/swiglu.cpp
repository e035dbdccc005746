#include "model/ops/cpu/entry_points.h"
#include "model/ops/cpu/scalar_math.h"

namespace grpo::ops::cpu {

template <typename A>
void swiglu_forward(const Tensor& out, const Tensor& gate_up) {
  const int64_t size = out.size(1);
  for (int64_t t = 0; t < out.size(0); ++t) {
    const A* gate = gate_up.data<A>() + t * 2 * size;
    const A* up = gate + size;
    A* row = out.data<A>() + t * size;
    for (int64_t i = 0; i < size; ++i) {
      const auto g = static_cast<float>(gate[i]);
      row[i] = static_cast<A>(g * sigmoid(g) * static_cast<float>(up[i]));
    }
  }
}

// silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g).
template <typename A>
void swiglu_backward(const Tensor& dgate_up, const Tensor& dout, const Tensor& gate_up) {
  const int64_t size = dout.size(1);
  for (int64_t t = 0; t < dout.size(0); ++t) {
    const A* gate = gate_up.data<A>() + t * 2 * size;
    const A* up = gate + size;
    const A* dout_row = dout.data<A>() + t * size;
    A* dgate = dgate_up.data<A>() + t * 2 * size;
    A* dup = dgate + size;
    for (int64_t i = 0; i < size; ++i) {
      const auto g = static_cast<float>(gate[i]);
      const auto u = static_cast<float>(up[i]);
      const auto d = static_cast<float>(dout_row[i]);
      const float s = sigmoid(g);
      dgate[i] = static_cast<A>(d * u * s * std::fma(g, 1.0f - s, 1.0f));
      dup[i] = static_cast<A>(d * (g * s));
    }
  }
}

#define GRPO_INSTANTIATE_SWIGLU(A)                               \
  template void swiglu_forward<A>(const Tensor&, const Tensor&); \
  template void swiglu_backward<A>(const Tensor&, const Tensor&, const Tensor&);
GRPO_INSTANTIATE_SWIGLU(float)
GRPO_INSTANTIATE_SWIGLU(Bfloat16)
#undef GRPO_INSTANTIATE_SWIGLU

}  // namespace grpo::ops::cpu
