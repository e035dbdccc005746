#include "app/launch/usable_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace grpo::app {
namespace {

const Device kGpu{DeviceKind::kCuda, 0};

TEST(UsableCores, FewOfManyAreWarnedAboutOnGpus) {
  EXPECT_EQ(few_cores_warning(kGpu, {.own = 1, .machine = 32}),
            "this rank may run on 1 of the machine's 32 cores, where its own threads, NCCL's and "
            "CUDA's wait for each other: start with mpirun --bind-to none, or srun "
            "--cpus-per-task=4 or more");
  EXPECT_NE(few_cores_warning(kGpu, {.own = 3, .machine = 32}), "");
  EXPECT_EQ(few_cores_warning(kGpu, {.own = 4, .machine = 32}), "");
  EXPECT_EQ(few_cores_warning(kGpu, {.own = 2, .machine = 2}), "");
  EXPECT_EQ(few_cores_warning(Device::cpu(), {.own = 1, .machine = 32}), "");
}

TEST(UsableCores, AreThoseThatTheThreadMayRunOn) {
  const UsableCores before = usable_cores();
  EXPECT_GE(before.own, 1);
  EXPECT_GE(before.machine, before.own);
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(usable_cores().own, 1);
  }).join();
  EXPECT_EQ(usable_cores().own, before.own);
}

}  // namespace
}  // namespace grpo::app
