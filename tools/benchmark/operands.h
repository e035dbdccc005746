// Random operands of operators under test. T tokens.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "model/core/tensor.h"

namespace grpo::benchmark {

// Normal numbers of a standard deviation, as many as asked for: a pattern of a million, repeated.
// One thread.
class RandomNumbers {
 public:
  explicit RandomNumbers(Allocator& allocator) : allocator_(allocator) {}

  void fill(const Tensor& tensor,  // float32 or bfloat16
            float deviation);
  Allocator& allocator() { return allocator_; }

 private:
  const Tensor& pattern(DType dtype, float deviation);

  Allocator& allocator_;
  std::map<std::pair<DType, float>, OwnedTensor> patterns_;
};

// The operands of one call.
class Operands {
 public:
  explicit Operands(RandomNumbers& numbers) : numbers_(numbers) {}

  Tensor random(DType dtype, Shape shape, float deviation = 1.0f);
  Tensor zeros(DType dtype, Shape shape);
  size_t size_bytes() const { return size_bytes_; }

 private:
  RandomNumbers& numbers_;
  std::vector<OwnedTensor> tensors_;
  size_t size_bytes_ = 0;
};

}  // namespace grpo::benchmark
