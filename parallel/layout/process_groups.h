// ProcessGroups: every axis stated, as a group or as off. Nothing is global and nothing has a
// default, so a model cannot inherit another's layout.
#pragma once

#include <memory>
#include <utility>

#include "model/core/communicator.h"
#include "parallel/comm/world.h"
#include "parallel/layout/mesh.h"
#include "parallel/layout/shard_layout.h"

namespace grpo::parallel {

// One axis: a communicator, or deliberately none. There is no third state.
class AxisGroup {
 public:
  static AxisGroup off() { return AxisGroup(nullptr); }
  static AxisGroup of(std::shared_ptr<Communicator> communicator);  // not null

  bool is_on() const { return communicator_ != nullptr; }
  int size() const { return is_on() ? communicator_->size() : 1; }
  int rank() const { return is_on() ? communicator_->rank() : 0; }
  // An InternalError when off: whoever communicates over an axis asks first whether it is on.
  Communicator& communicator() const;

 private:
  explicit AxisGroup(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  std::shared_ptr<Communicator> communicator_;
};

// AxisGroup cannot be default-made, so leaving an axis out, or adding one later, is a compile error
// wherever a collection is built.
struct ProcessGroups {
  AxisGroup tp;
  AxisGroup gtp_remat;
  AxisGroup dp;    // replicas of a shard
  AxisGroup data;  // gtp_remat x dp: ranks that data is split over
  AxisGroup world;
  int64_t gtp_alignment;

  ShardCoordinate shard_coordinate() const;
};

// Groups of a training layout (policy, reference).
ProcessGroups make_training_groups(World& world, const Mesh& mesh, int64_t gtp_alignment);

// Groups of generation: a whole model on every rank. tp and gtp_remat are off; every rank is a
// replica.
ProcessGroups make_generation_groups(World& world);

}  // namespace grpo::parallel
