#include "model/core/workspace.h"

#include <algorithm>
#include <atomic>

namespace grpo {

namespace {
constexpr size_t kAlignmentBytes = 64;
constexpr size_t kMinBlockBytes = size_t{1} << 20;
}  // namespace

Workspace::Workspace(Allocator& allocator) : allocator_(allocator) {
  static std::atomic<uint64_t> num_workspaces = 0;
  id_ = num_workspaces++;
}

Workspace::Scope::~Scope() {
  if (workspace_.allocator_.poison_scratch()) {
    for (size_t block = block_; block < workspace_.blocks_.size() && block <= workspace_.block_;
         ++block) {
      const size_t begin = block == block_ ? offset_ : 0;
      Buffer& buffer = workspace_.blocks_[block];
      poison_memory(static_cast<std::byte*>(buffer.data()) + begin, buffer.size_bytes() - begin,
                    buffer.device());
    }
  }
  workspace_.block_ = block_;
  workspace_.offset_ = offset_;
  workspace_.use_ = use_;
}

void Workspace::reserve(size_t size_bytes) {
  CHECK(blocks_.empty(), "the workspace is in use");
  if (size_bytes > 0) blocks_.push_back(allocator_.allocate("workspace", size_bytes));
}

Tensor Workspace::take(DType dtype, Shape shape, ScratchOwner owner) {
  const size_t wanted = static_cast<size_t>(shape.num_elements()) * dtype_size_bytes(dtype);
  const size_t bytes = (wanted + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  while (block_ < blocks_.size() && offset_ + bytes > blocks_[block_].size_bytes()) {
    ++block_;
    offset_ = 0;
  }
  if (block_ == blocks_.size()) {
    blocks_.push_back(allocator_.allocate("workspace", std::max(bytes, kMinBlockBytes)));
    offset_ = 0;
  }
  auto* data = static_cast<std::byte*>(blocks_[block_].data()) + offset_;
  offset_ += bytes;
  use_[num_operators_ > 0 ? ScratchOwner::kOperators : owner] += bytes;
  allocator_.note_workspace_use(use_);
  if (allocator_.poison_scratch()) poison_memory(data, bytes, allocator_.device());
  return Tensor(data, dtype, shape, allocator_.device());
}

}  // namespace grpo
