#include "app/launch/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;
constexpr const char* kMeminfo =
    "MemTotal:  4096 kB\nMemFree: 100 kB\nMemAvailable:    2048 kB\nCached: 7 kB\n";

TEST(AvailableMemory, TheSystemsWithoutControlGroups) {
  const testing::ScratchFolder root;
  EXPECT_EQ(available_memory_bytes(root.path()), std::nullopt);
  root.write("proc/meminfo", kMeminfo);
  EXPECT_EQ(available_memory_bytes(root.path()), 2048u * 1024);
}

TEST(AvailableMemory, TheTightestGroupOnTheWayUp) {
  const testing::ScratchFolder root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "0::/jobs/7\n");
  root.write("sys/fs/cgroup/jobs/7/memory.max", "max\n");
  root.write("sys/fs/cgroup/jobs/7/memory.current", "5000\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 2048u * 1024);
  root.write("sys/fs/cgroup/jobs/memory.max", "1000000\n");
  root.write("sys/fs/cgroup/jobs/memory.current", "400000\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 600000u);
  root.write("sys/fs/cgroup/jobs/memory.current", "1400000\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 0u);
}

TEST(AvailableMemory, VersionOneAndAContainerThatSeesItsGroupAsTheRoot) {
  const testing::ScratchFolder root;
  root.write("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/docker/abc\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 2000u);
}

int ranks_here(int world_size, const std::map<std::string, std::string>& variables) {
  return num_ranks_here(world_size, [&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

TEST(RanksHere, AsTheLauncherTells) {
  EXPECT_EQ(ranks_here(8, {}), 8);
  EXPECT_EQ(ranks_here(8, {{"LOCAL_WORLD_SIZE", "4"}}), 4);
  EXPECT_EQ(ranks_here(8, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), 2);
  EXPECT_EQ(ranks_here(8, {{"SLURM_STEP_TASKS_PER_NODE", "3(x2),2"}}), 3);
  EXPECT_EQ(ranks_here(8, {{"LOCAL_WORLD_SIZE", "many"}}), 8);
}

TEST(MemoryWarning, NamesTheBiggestOwnerAndWhatFits) {
  const rl::PhasePlan phase{.phase = "policy_training",
                            .peak = {.bytes = 10 * kMiB,
                                     .by_owner = {{"kv_cache", 3 * kMiB}, {"workspace", 7 * kMiB}},
                                     .workspace = {}}};
  const rl::MemoryPlan plan{.device = Device::cpu(),
                            .ranks = {{.phases = {phase}}, {.phases = {phase}}}};
  EXPECT_EQ(memory_warning(plan, 2, 20 * kMiB), "");
  const std::string warning = memory_warning(plan, 2, 20 * kMiB - 1);
  EXPECT_THAT(warning, HasSubstr("needs 20.0 MiB (2 ranks here x 10.0 MiB)"));
  EXPECT_THAT(warning, HasSubstr("Most of it is workspace (7.0 MiB)"));
  EXPECT_THAT(warning, HasSubstr("1 such rank fits"));
  EXPECT_THAT(memory_warning(plan, 1, kMiB), HasSubstr("Not even one such rank fits"));
}

}  // namespace
}  // namespace grpo::app
