// Which device a rank gets: on a machine with one or more (fake) GPUs.
#include "parallel/comm/rank_device.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/fake_cuda/fake_memory.h"
#include "tests/run_ranks.h"

namespace grpo::testing {
namespace {

using parallel::choose_device;
using parallel::World;

class RankDeviceTest : public ::testing::Test {
 protected:
  RankDeviceTest() { set_fake_device_count(1); }
  ~RankDeviceTest() override {
    set_fake_device_count(1);
    set_fake_matrix_library_problem("");
  }

  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(RankDeviceTest, OneRankTakesTheGpuThatItsPlaceGivesIt) {
  run_ranks(1, [](World& world) {
    EXPECT_EQ(choose_device("auto", 0, world).device, (Device{DeviceKind::kCuda, 0}));
    EXPECT_EQ(choose_device("auto", 0, world).description, "cuda:0 (fake device)");
    EXPECT_EQ(choose_device("cpu", 0, world).device, Device::cpu());
    // A launcher that shows a rank one GPU of several.
    EXPECT_EQ(choose_device("cuda", 3, world).device, (Device{DeviceKind::kCuda, 0}));
    set_fake_device_count(4);
    EXPECT_EQ(choose_device("cuda", 3, world).device, (Device{DeviceKind::kCuda, 3}));
  });
}

TEST_F(RankDeviceTest, MoreLocalRanksThanGpus) {
  set_fake_device_count(2);
  run_ranks(1, [](World& world) {
    EXPECT_EQ(error_of([&] { choose_device("cuda", 2, world); }),
              "parallel.device is cuda: local rank 2 has no GPU of its own, this machine has 2; "
              "allowed: as many ranks as GPUs");
  });
}

TEST_F(RankDeviceTest, NoGpu) {
  set_fake_device_count(0);
  run_ranks(1, [](World& world) {
    const parallel::RankDevice chosen = choose_device("auto", 0, world);
    EXPECT_EQ(chosen.device, Device::cpu());
    EXPECT_EQ(chosen.description, "cpu (parallel.device is auto: there is no cuda:0)");
    EXPECT_EQ(error_of([&] { choose_device("cuda", 0, world); }),
              "parallel.device is cuda: there is no cuda:0; allowed here: cpu");
  });
}

TEST_F(RankDeviceTest, AGpuWithoutTheMatrixLibrary) {
  set_fake_matrix_library_problem("cuBLASLt cannot be loaded (libcublasLt.so.13: no such file)");
  run_ranks(1, [](World& world) {
    for (const char* wanted : {"auto", "cuda"}) {
      EXPECT_EQ(error_of([&] { choose_device(wanted, 0, world); }),
                "parallel.device is cuda: cuBLASLt cannot be loaded (libcublasLt.so.13: no such "
                "file); allowed here: cpu");
    }
  });
}

TEST_F(RankDeviceTest, SeveralRanksTakeAGpuEach) {
  set_fake_device_count(2);
  run_ranks(2, [](World& world) {
    for (const char* wanted : {"auto", "cuda"}) {
      EXPECT_EQ(choose_device(wanted, world.rank(), world).device,
                (Device{DeviceKind::kCuda, world.rank()}));
    }
  });
}

TEST_F(RankDeviceTest, AutoTakesTheCpuWhereGpusDoNotSuffice) {
  set_fake_device_count(2);
  run_ranks(3, [](World& world) {
    const parallel::RankDevice chosen = choose_device("auto", world.rank(), world);
    EXPECT_EQ(chosen.device, Device::cpu());
    EXPECT_EQ(chosen.description,
              "cpu (parallel.device is auto: 2 GPUs for more ranks on this machine)");
  });
  set_fake_device_count(1);
  run_ranks(2, [](World& world) {
    EXPECT_EQ(choose_device("auto", world.rank(), world).description,
              "cpu (parallel.device is auto: ranks 0 and 1 would share a GPU)");
  });
}

TEST_F(RankDeviceTest, TwoRanksOnOneGpu) {
  run_ranks(2, [](World& world) {
    EXPECT_EQ(error_of([&] { choose_device("cuda", world.rank(), world); }),
              "parallel.device is cuda: ranks 0 and 1 would share GPU fake-0; allowed: one rank on "
              "each GPU");
  });
}

}  // namespace
}  // namespace grpo::testing
