#include "parallel/layout/process_groups.h"

#include <numeric>

#include "model/core/errors.h"

namespace grpo::parallel {

AxisGroup AxisGroup::of(std::shared_ptr<Communicator> communicator) {
  CHECK(communicator != nullptr, "an axis group needs a communicator; use AxisGroup::off()");
  return AxisGroup(std::move(communicator));
}

Communicator& AxisGroup::communicator() const {
  CHECK(is_on(), "this axis is off");
  return *communicator_;
}

ShardCoordinate ProcessGroups::shard_coordinate() const {
  return {.tp_size = tp.size(),
          .tp_rank = tp.rank(),
          .gtp_size = gtp_remat.size(),
          .gtp_rank = gtp_remat.rank(),
          .gtp_alignment = gtp_alignment};
}

namespace {

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

ProcessGroups make_training_groups(World& world, const Mesh& mesh, int64_t gtp_alignment) {
  CHECK(mesh.world_size() == world.size(), "mesh of {} ranks on a world of {}", mesh.world_size(),
        world.size());
  const int rank = world.rank();
  return {.tp = AxisGroup::of(world.make_group(mesh.tp_ranks(rank), "tp")),
          .gtp_remat = AxisGroup::of(world.make_group(mesh.gtp_remat_ranks(rank), "gtp_remat")),
          .dp = AxisGroup::of(world.make_group(mesh.dp_ranks(rank), "dp")),
          .data = AxisGroup::of(world.make_group(mesh.data_ranks(rank), "data")),
          .world = AxisGroup::of(world.make_group(all_ranks(world), "world")),
          .gtp_alignment = gtp_alignment};
}

ProcessGroups make_generation_groups(World& world) {
  const auto everyone = world.make_group(all_ranks(world), "generation_world");
  return {.tp = AxisGroup::off(),
          .gtp_remat = AxisGroup::off(),
          .dp = AxisGroup::of(everyone),
          .data = AxisGroup::of(everyone),
          .world = AxisGroup::of(everyone),
          .gtp_alignment = 1};
}

}  // namespace grpo::parallel
