#include "parallel/layout/process_groups.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "model/core/errors.h"
#include "parallel/comm/host_collectives.h"
#include "tests/model_fixture.h"
#include "tests/run_ranks.h"

namespace grpo::parallel {
namespace {

// G03: "absent" and "deliberately none" are different things, and the first does not compile.
static_assert(!std::is_default_constructible_v<AxisGroup>);
static_assert(!std::is_default_constructible_v<ProcessGroups>);
static_assert(!std::is_constructible_v<ProcessGroups, AxisGroup, AxisGroup, AxisGroup, AxisGroup>);
static_assert(std::is_constructible_v<ProcessGroups, AxisGroup, AxisGroup, AxisGroup, AxisGroup,
                                      AxisGroup, int64_t>);

// World ranks of a group's members, as the group itself tells them.
std::vector<double> members(const AxisGroup& axis, int world_rank) {
  return all_gather_double(axis.communicator(), world_rank);
}

using Ranks = std::vector<double>;

TEST(ProcessGroups, G03_OffIsAcceptedAndIsAGroupOfOne) {
  const AxisGroup off = AxisGroup::off();
  EXPECT_FALSE(off.is_on());
  EXPECT_EQ(off.size(), 1);
  EXPECT_EQ(off.rank(), 0);
}

TEST(ProcessGroups, G03_AMissingGroupIsAHardError) {
  EXPECT_THROW(AxisGroup::of(nullptr), InternalError);
  EXPECT_THROW(AxisGroup::off().communicator(), InternalError);
}

TEST(ProcessGroups, TrainingGroupsFollowTheMesh) {
  testing::run_ranks(8, [](World& world) {
    const ProcessGroups groups = make_training_groups(world, Mesh(2, 2, 2), 16);
    const int tp = world.rank() % 2;
    const int gtp = world.rank() / 2 % 2;
    const int dp = world.rank() / 4;
    EXPECT_EQ(groups.tp.rank(), tp);
    EXPECT_EQ(groups.gtp_remat.rank(), gtp);
    EXPECT_EQ(groups.dp.rank(), dp);
    EXPECT_EQ(groups.data.rank(), dp * 2 + gtp);
    const double base = tp;
    EXPECT_EQ(members(groups.tp, world.rank()),
              (Ranks{base - tp + 2 * gtp + 4 * dp, 1 + 2. * gtp + 4 * dp}));
    EXPECT_EQ(members(groups.gtp_remat, world.rank()), (Ranks{base + 4 * dp, base + 2 + 4 * dp}));
    EXPECT_EQ(members(groups.dp, world.rank()), (Ranks{base + 2 * gtp, base + 2 * gtp + 4}));
    EXPECT_EQ(members(groups.data, world.rank()), (Ranks{base, base + 2, base + 4, base + 6}));
    EXPECT_EQ(members(groups.world, world.rank()), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
    const ShardCoordinate c = groups.shard_coordinate();
    EXPECT_EQ(c.tp_size, 2);
    EXPECT_EQ(c.tp_rank, tp);
    EXPECT_EQ(c.gtp_size, 2);
    EXPECT_EQ(c.gtp_rank, gtp);
    EXPECT_EQ(c.gtp_alignment, 16);
  });
}

TEST(ProcessGroups, G03_GenerationGroupsStateThatNothingIsSharded) {
  testing::run_ranks(2, [](World& world) {
    const ProcessGroups training = make_training_groups(world, Mesh(1, 2, 1), 16);
    const ProcessGroups generation = make_generation_groups(world);
    EXPECT_EQ(training.gtp_remat.size(), 2);
    EXPECT_FALSE(generation.tp.is_on());
    EXPECT_FALSE(generation.gtp_remat.is_on());
    EXPECT_EQ(generation.shard_coordinate().gtp_size, 1);
    EXPECT_EQ(generation.data.size(), 2);
  });
}

TEST(ProcessGroups, AMeshOfAnotherWorldIsRefused) {
  testing::run_ranks(2, [](World& world) {
    EXPECT_THROW(make_training_groups(world, Mesh(1, 4, 1), 16), InternalError);
  });
}

TEST(Mesh, RanksAndCoordinatesAreInverse) {
  const Mesh mesh(2, 3, 4);
  ASSERT_EQ(mesh.world_size(), 24);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const MeshCoordinate c = mesh.coordinate(rank);
    EXPECT_EQ(mesh.rank_of(c), rank);
    EXPECT_EQ(c.tp + 2 * (c.gtp_remat + 3 * c.dp), rank);  // tp fastest, then gtp_remat, then dp
  }
}

TEST(Mesh, DataRanksAreThoseOfOneTpRank) {
  EXPECT_EQ(Mesh(2, 2, 2).data_ranks(5), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(Mesh(1, 2, 2).data_ranks(3), (std::vector<int>{0, 1, 2, 3}));
}

TEST(Mesh, BadSizesAndRanksAreErrors) {
  EXPECT_THROW(Mesh(1, 0, 1), InternalError);
  EXPECT_THROW(Mesh(1, 2, 1).coordinate(2), InternalError);
  EXPECT_EQ(Mesh(1, 2, 1).to_string(),
            "rank 0 -> tp 0, gtp_remat 0, dp 0\nrank 1 -> tp 0, gtp_remat 1, dp 0\n");
}

}  // namespace
}  // namespace grpo::parallel
