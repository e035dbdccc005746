#include "tools/benchmark/operands.h"

#include <algorithm>

#include "model/core/counter_rng.h"
#include "model/core/host_transfer.h"

namespace grpo::benchmark {

namespace {
constexpr int64_t kPatternElements = int64_t{1} << 20;
}  // namespace

const Tensor& RandomNumbers::pattern(DType dtype, float deviation) {
  OwnedTensor& pattern = patterns_[{dtype, deviation}];
  if (!pattern.is_empty()) return pattern.view();
  pattern = OwnedTensor(allocator_, "random_pattern", dtype, {kPatternElements});
  HostDraft draft(pattern.view());
  for (int64_t i = 0; i < kPatternElements; ++i) {
    const float value = deviation * normal_at(1, 2, static_cast<uint64_t>(i), 0);
    if (dtype == DType::kFloat32) {
      draft.view().data<float>()[i] = value;
    } else {
      draft.view().data<Bfloat16>()[i] = Bfloat16(value);
    }
  }
  draft.commit();
  return pattern.view();
}

void RandomNumbers::fill(const Tensor& tensor, float deviation) {
  const Tensor& numbers = pattern(tensor.dtype(), deviation);
  const int64_t total = tensor.num_elements();
  const Tensor flat = tensor.reshaped({total});
  int64_t filled = std::min(total, kPatternElements);
  copy_tensor(flat.rows(0, filled), numbers.rows(0, filled));
  while (filled < total) {
    const int64_t count = std::min(filled, total - filled);
    copy_tensor(flat.rows(filled, count), flat.rows(0, count));
    filled += count;
  }
}

Tensor Operands::zeros(DType dtype, Shape shape) {
  tensors_.emplace_back(numbers_.allocator(), "operands", dtype, shape);
  size_bytes_ += tensors_.back().view().size_bytes();
  return tensors_.back().view();
}

Tensor Operands::random(DType dtype, Shape shape, float deviation) {
  const Tensor tensor = zeros(dtype, shape);
  numbers_.fill(tensor, deviation);
  return tensor;
}

}  // namespace grpo::benchmark
