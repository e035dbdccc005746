// Scratch memory of operators: taken in stack order inside a scope, given back together, kept for
// reuse.
#pragma once

#include <string>
#include <vector>

#include "model/core/buffer.h"
#include "model/core/tensor.h"

namespace grpo {

// One per rank and stream; not thread-safe. Blocks are never freed before the workspace, so that
// their addresses stay valid for captured work. What fits the reserve comes from one block without
// gaps.
class Workspace {
 public:
  explicit Workspace(Allocator& allocator);

  // Of no other workspace of this process, dead ones included.
  uint64_t id() const { return id_; }

  // Gives back, at the end of its life, everything taken since its construction.
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : workspace_(workspace),
          block_(workspace.block_),
          offset_(workspace.offset_),
          use_(workspace.use_) {}
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t block_;
    size_t offset_;
    WorkspaceUse use_;
  };

  // Allocates the first block, before anything is taken: the plan's bytes, so that nothing grows
  // later.
  void reserve(size_t size_bytes);

  // Uninitialised (poisoned when the allocator says so); valid until the enclosing Scope ends.
  // What it is for shows in memory reports.
  Tensor take(DType dtype, Shape shape, ScratchOwner owner = ScratchOwner::kActivations);

  // While an operator runs, everything taken is the operators'.
  class OperatorScope {
   public:
    explicit OperatorScope(Workspace& workspace) : workspace_(workspace) {
      ++workspace_.num_operators_;
    }
    ~OperatorScope() { --workspace_.num_operators_; }
    OperatorScope(const OperatorScope&) = delete;
    OperatorScope& operator=(const OperatorScope&) = delete;

   private:
    Workspace& workspace_;
  };

  Allocator& allocator() { return allocator_; }

 private:
  Allocator& allocator_;
  uint64_t id_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;       // block that the next take starts from
  size_t offset_ = 0;      // bytes used in that block
  int num_operators_ = 0;  // running, one inside the other
  WorkspaceUse use_;       // taken now, without gaps at the ends of blocks
};

}  // namespace grpo
