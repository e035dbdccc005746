// Delays before a refit: what reads weights without waiting for the default stream, or for a
// collective, gets others.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "parallel/store/sharded_parameter_store.h"
#include "tests/delayed_communicator.h"

namespace grpo::parallel {

// All collectives of the groups come late, those of the world included.
inline ProcessGroups delay_all(ProcessGroups groups, grpo::testing::Delay kind,
                               Allocator& allocator) {
  if (groups.world.size() > 1) {
    const auto owner = std::make_shared<AxisGroup>(groups.world);
    groups.world = AxisGroup::of(grpo::testing::delay(
        std::shared_ptr<Communicator>(owner, &owner->communicator()), kind, allocator));
  }
  return grpo::testing::delay(std::move(groups), kind, allocator);
}

// Weights that reach their store behind other work.
class LateWeights {
 public:
  // Those that the store, which outlives this, holds now.
  explicit LateWeights(ShardedParameterStore& store)
      : store_(store), late_(grpo::testing::Delay::kWork, store.allocator()) {
    for (size_t i = 0; i < store.specs().size(); ++i) {
      const Tensor shard = store.shard(static_cast<ParameterId>(i));
      copies_.emplace_back(store.allocator(), "test/late_weights", shard.dtype(), shard.shape());
      copy_tensor(copies_.back(), shard, Stream::none());
    }
  }

  // Queues their way back into the store; the host does not wait.
  void write() {
    late_.queue();
    for (size_t i = 0; i < copies_.size(); ++i) {
      copy_tensor(store_.shard(static_cast<ParameterId>(i)), copies_[i], Stream::none());
    }
    store_.mark_weights_changed();
  }

 private:
  ShardedParameterStore& store_;
  grpo::testing::LateWork late_;
  std::vector<OwnedTensor> copies_;
};

}  // namespace grpo::parallel
