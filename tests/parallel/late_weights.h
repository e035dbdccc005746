// Weights that reach a store late: what reads them without waiting for the default stream gets
// others.
#pragma once

#include <vector>

#include "parallel/sharded_parameter_store.h"
#include "tests/delayed_communicator.h"

namespace grpo::parallel {

class LateWeights {
 public:
  // Those that the store, which outlives this, holds now.
  explicit LateWeights(ShardedParameterStore& store) : store_(store), busy_(store.allocator()) {
    for (size_t i = 0; i < store.specs().size(); ++i) {
      const Tensor shard = store.shard(static_cast<ParameterId>(i));
      copies_.emplace_back(store.allocator(), "test/late_weights", shard.dtype(), shard.shape());
      copy_tensor(copies_.back(), shard, Stream::none());
    }
  }

  // Queues their way back into the store behind other work; the host does not wait.
  void write() {
    busy_.queue(Stream::none());
    for (size_t i = 0; i < copies_.size(); ++i) {
      copy_tensor(store_.shard(static_cast<ParameterId>(i)), copies_[i], Stream::none());
    }
    store_.mark_weights_changed();
  }

 private:
  ShardedParameterStore& store_;
  grpo::testing::BusyWork busy_;
  std::vector<OwnedTensor> copies_;
};

}  // namespace grpo::parallel
