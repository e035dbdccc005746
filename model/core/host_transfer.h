// Contents of tensors on their way between the host and the device they lie on: plain copies on the
// CPU. A transfer from a CUDA device waits for the stream, as does one of more than 256 KiB to it,
// so few large ones are better than many small ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/core/tensor.h"

namespace grpo {

// `values` as a CPU tensor of one dim, without a copy.
template <typename T>
Tensor host_tensor(std::span<T> values) {
  return Tensor(values.data(), DTypeOf<T>::value, {static_cast<int64_t>(values.size())},
                Device::cpu());
}

// All elements of the tensor; T and the counts must match.
template <typename T>
void copy_to_host(std::span<T> values, const Tensor& source, Stream stream = Stream::none()) {
  copy_tensor(host_tensor(values), source, stream);
}

template <typename T>
void copy_from_host(const Tensor& destination, std::span<const T> values,
                    Stream stream = Stream::none()) {
  copy_tensor(destination,
              Tensor(const_cast<T*>(values.data()), DTypeOf<T>::value,  // only read
                     {static_cast<int64_t>(values.size())}, Device::cpu()),
              stream);
}

template <typename T>
std::vector<T> to_host(const Tensor& source, Stream stream = Stream::none()) {
  std::vector<T> values(static_cast<size_t>(source.num_elements()));
  copy_to_host<T>(values, source, stream);
  return values;
}

// A tensor's memory as the host may read it: the tensor itself on the CPU, else a copy made now.
class HostCopy {
 public:
  explicit HostCopy(const Tensor& source, Stream stream = Stream::none());
  const Tensor& view() const { return view_; }  // on the CPU
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.raw()), view_.size_bytes()};
  }

 private:
  std::vector<std::byte> copy_;
  Tensor view_;
};

// A tensor's memory for the host to write: the tensor itself on the CPU, else zeros that commit()
// moves. The host writes every element.
class HostDraft {
 public:
  explicit HostDraft(const Tensor& destination);
  const Tensor& view() const { return view_; }  // on the CPU
  void commit(Stream stream = Stream::none());

 private:
  Tensor destination_;
  std::vector<std::byte> draft_;
  Tensor view_;
};

// Index arrays filled on the host and moved to a device in one transfer.
class HostInt32Arrays {
 public:
  // Zeros for the caller to fill; valid until this object dies.
  std::span<int32_t> add(Shape shape);
  // Of the memory that all arrays take, end to end at aligned places.
  int64_t num_elements() const { return num_elements_; }
  // Copies all arrays into `flat` and returns their tensors in the order of add().
  std::vector<Tensor> upload(const Tensor& flat,  // [num_elements()] int32
                             Stream stream = Stream::none()) const;

 private:
  struct Array {
    Shape shape;
    std::vector<int32_t> values;
    int64_t offset;
  };

  std::vector<Array> arrays_;
  int64_t num_elements_ = 0;
};

}  // namespace grpo
