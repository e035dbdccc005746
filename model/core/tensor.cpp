#include "model/core/tensor.h"

#include <cstring>

#include "model/core/device_cuda.h"

namespace grpo {

Shape::Shape(std::initializer_list<int64_t> sizes) {
  CHECK(sizes.size() <= kMaxRank, "a tensor has at most {} dims", int{kMaxRank});
  for (const int64_t size : sizes) {
    CHECK(size >= 0, "negative size {}", size);
    sizes_[static_cast<size_t>(rank_++)] = size;
  }
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int dim = 0; dim < rank_; ++dim) count *= (*this)[dim];
  return count;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int dim = 0; dim < rank_; ++dim) {
    text += (dim == 0 ? "" : ", ") + std::to_string((*this)[dim]);
  }
  return text + "]";
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  CHECK(rank() >= 1 && begin >= 0 && count >= 0 && begin + count <= size(0),
        "rows [{}, {}) of a tensor of shape {}", begin, begin + count, shape_.to_string());
  Shape shape = shape_;
  shape.set(0, count);
  const int64_t row_elements = size(0) == 0 ? 0 : num_elements() / size(0);
  auto* base = static_cast<std::byte*>(data_);
  const auto offset = static_cast<size_t>(begin * row_elements) * dtype_size_bytes(dtype_);
  return Tensor(base == nullptr ? nullptr : base + offset, dtype_, shape, device_);
}

Tensor Tensor::reshaped(Shape shape) const {
  CHECK(shape.num_elements() == num_elements(), "{} seen as {}", shape_.to_string(),
        shape.to_string());
  return Tensor(data_, dtype_, shape, device_);
}

OwnedTensor::OwnedTensor(Allocator& allocator, const std::string& name, DType dtype, Shape shape)
    : buffer_(allocator.allocate(
          name, static_cast<size_t>(shape.num_elements()) * dtype_size_bytes(dtype))),
      view_(buffer_.data(), dtype, shape, allocator.device()) {}

void fill_zero(const Tensor& tensor, Stream stream) {
  if (tensor.size_bytes() == 0 || tensor.device().is_rehearsal) return;
  if (tensor.device().kind == DeviceKind::kCuda) {
    cuda_fill_bytes(tensor.device(), tensor.raw(), 0, tensor.size_bytes(), stream);
  } else {
    std::memset(tensor.raw(), 0, tensor.size_bytes());
  }
}

void copy_tensor(const Tensor& destination, const Tensor& source, Stream stream) {
  CHECK(
      destination.dtype() == source.dtype() && destination.num_elements() == source.num_elements(),
      "copy of {} {} into {} {}", dtype_name(source.dtype()), source.shape().to_string(),
      dtype_name(destination.dtype()), destination.shape().to_string());
  if (source.size_bytes() == 0 || source.device().is_rehearsal) return;
  const bool is_on_device =
      destination.device().kind == DeviceKind::kCuda || source.device().kind == DeviceKind::kCuda;
  if (is_on_device && !destination.device().is_rehearsal) {
    cuda_copy_bytes(destination.raw(), destination.device(), source.raw(), source.device(),
                    source.size_bytes(), stream);
  } else {
    std::memmove(destination.raw(), source.raw(), source.size_bytes());
  }
}

}  // namespace grpo
