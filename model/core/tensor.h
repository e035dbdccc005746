// Tensor: a non-owning view of row-major, contiguous memory. OwnedTensor: a buffer with its view.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "model/core/buffer.h"
#include "model/core/device.h"
#include "model/core/dtype.h"
#include "model/core/errors.h"

namespace grpo {

// Up to four sizes, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);

  int rank() const { return rank_; }
  int64_t operator[](int dim) const { return sizes_[static_cast<size_t>(dim)]; }
  int64_t num_elements() const;
  std::string to_string() const;  // "[3, 64]"
  friend bool operator==(const Shape&, const Shape&) = default;

  void set(int dim, int64_t size) { sizes_[static_cast<size_t>(dim)] = size; }

 private:
  int rank_ = 0;
  std::array<int64_t, kMaxRank> sizes_{};
};

class Tensor {
 public:
  Tensor() = default;  // an absent optional operand; is_absent() is true
  Tensor(void* data, DType dtype, Shape shape, Device device)
      : data_(data), dtype_(dtype), shape_(shape), device_(device) {}

  bool is_absent() const { return shape_.rank() == 0; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t num_elements() const { return is_absent() ? 0 : shape_.num_elements(); }
  size_t size_bytes() const {
    return static_cast<size_t>(num_elements()) * dtype_size_bytes(dtype_);
  }
  void* raw() const { return data_; }

  // Typed pointer; T must match dtype().
  template <typename T>
  T* data() const {
    CHECK(DTypeOf<T>::value == dtype_, "tensor holds {}", dtype_name(dtype_));
    return static_cast<T*>(data_);
  }

  // Rows [begin, begin + count) along dim 0.
  Tensor rows(int64_t begin, int64_t count) const;
  // The same memory under another shape of equal size.
  Tensor reshaped(Shape shape) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  Shape shape_;
  Device device_ = Device::cpu();
};

class OwnedTensor {
 public:
  OwnedTensor() = default;
  OwnedTensor(Allocator& allocator, const std::string& name, DType dtype, Shape shape);

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }
  bool is_empty() const { return view_.is_absent(); }

 private:
  Buffer buffer_;
  Tensor view_;
};

// On a CUDA device in stream order; the call may return before.
void fill_zero(const Tensor& tensor, Stream stream = Stream::none());
// Copies bytes; dtype and element count must match, devices need not. Between CUDA devices in
// stream order, and the call may return before; a copy to the CPU is done when it returns, and of
// one from the CPU the source is read. Tensors overlap on the CPU only.
void copy_tensor(const Tensor& destination, const Tensor& source, Stream stream = Stream::none());

}  // namespace grpo
