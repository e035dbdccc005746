// LinearProbe: scratch of check_linear_exactness.
#pragma once

#include "model/core/tensor.h"

namespace grpo::ops::cuda {

// T most rows, R distinct rows, I in features, O out features. A is the weight's dtype.
struct LinearProbe {
  Tensor x;       // [T, I] A, to be filled: row r repeats row r % R
  Tensor wanted;  // [R, O] A or float32, of the distinct rows
  Tensor out;     // [T, O] the same
};

}  // namespace grpo::ops::cuda
