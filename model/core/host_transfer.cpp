#include "model/core/host_transfer.h"

#include <algorithm>

namespace grpo {

namespace {

constexpr int64_t kAlignedElements = 16;  // 64 bytes

bool is_on_host(const Tensor& tensor) { return tensor.device().kind == DeviceKind::kCpu; }

Tensor over(std::vector<std::byte>& bytes, const Tensor& like) {
  bytes.resize(like.size_bytes());
  return Tensor(bytes.data(), like.dtype(), like.shape(), Device::cpu());
}

}  // namespace

HostCopy::HostCopy(const Tensor& source, Stream stream) : view_(source) {
  if (is_on_host(source)) return;
  view_ = over(copy_, source);
  copy_tensor(view_, source, stream);
}

HostDraft::HostDraft(const Tensor& destination) : destination_(destination), view_(destination) {
  if (!is_on_host(destination)) view_ = over(draft_, destination);
}

void HostDraft::commit(Stream stream) {
  if (!is_on_host(destination_)) copy_tensor(destination_, view_, stream);
}

std::span<int32_t> HostInt32Arrays::add(Shape shape) {
  const int64_t count = shape.num_elements();
  Array& array = arrays_.emplace_back(
      Array{shape, std::vector<int32_t>(static_cast<size_t>(count)), num_elements_});
  num_elements_ += (count + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  return array.values;
}

std::vector<Tensor> HostInt32Arrays::upload(const Tensor& flat, Stream stream) const {
  std::vector<int32_t> all(static_cast<size_t>(num_elements_));
  std::vector<Tensor> tensors;
  for (const Array& array : arrays_) {
    std::copy(array.values.begin(), array.values.end(), all.begin() + array.offset);
    tensors.push_back(flat.rows(array.offset, array.shape.num_elements()).reshaped(array.shape));
  }
  copy_from_host<int32_t>(flat, all, stream);
  return tensors;
}

}  // namespace grpo
