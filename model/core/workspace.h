// Scratch memory of operators: taken in stack order inside a scope, given back together, kept for reuse.
#pragma once

#include <string>
#include <vector>

#include "model/core/buffer.h"
#include "model/core/tensor.h"

namespace grpo {

// One per rank and stream; not thread-safe. Blocks are never freed before the workspace, so that their
// addresses stay valid for captured work.
class Workspace {
 public:
  explicit Workspace(Allocator& allocator) : allocator_(allocator) {}

  // Gives back, at the end of its life, everything taken since its construction.
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : workspace_(workspace), block_(workspace.block_), offset_(workspace.offset_) {}
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t block_;
    size_t offset_;
  };

  // Uninitialised (poisoned when the allocator says so); valid until the enclosing Scope ends.
  Tensor take(DType dtype, Shape shape);

  Allocator& allocator() { return allocator_; }

 private:
  Allocator& allocator_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;   // block that the next take starts from
  size_t offset_ = 0;  // bytes used in that block
};

}  // namespace grpo
