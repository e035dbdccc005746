#include "model/ops/cpu/entry_points.h"

namespace grpo::ops::cpu {

template <typename A>
void residual_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  const int64_t count = out.num_elements();
  A* out_data = out.data<A>();
  const A* a_data = a.data<A>();
  const A* b_data = b.data<A>();
  for (int64_t i = 0; i < count; ++i) {
    out_data[i] = static_cast<A>(static_cast<float>(a_data[i]) + static_cast<float>(b_data[i]));
  }
}

template void residual_add<float>(const Tensor&, const Tensor&, const Tensor&);
template void residual_add<Bfloat16>(const Tensor&, const Tensor&, const Tensor&);

}  // namespace grpo::ops::cpu
