// What the other ranks say when one fails, hangs or leaves; ranks as threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/run_ranks.h"

namespace grpo::parallel {
namespace {

using grpo::testing::run_ranks;
using std::chrono::milliseconds;
using std::chrono::seconds;

// What ended each rank: "" for a rank that came through.
struct Outcome {
  std::string message;
  ExitCode exit_code = ExitCode::kDone;
};

class FailureTest : public ::testing::Test {
 protected:
  void SetUp() override { ::alarm(60); }  // a hang ends the program
  void TearDown() override { ::alarm(0); }

  // Runs fn on every rank; returns each rank's end, and in `first` the error that run_ranks
  // rethrew.
  std::vector<Outcome> outcomes(int num_ranks, milliseconds timeout,
                                const std::function<void(World&, Communicator&)>& fn) {
    std::vector<Outcome> ends(static_cast<size_t>(num_ranks));
    first_ = {};
    try {
      run_ranks(
          num_ranks,
          [&](World& world) {
            std::vector<int> ranks;
            for (int rank = 0; rank < num_ranks; ++rank) ranks.push_back(rank);
            auto group = world.make_group(ranks, "all");
            try {
              fn(world, *group);
            } catch (const Error& error) {
              ends[static_cast<size_t>(world.rank())] = {error.what(), error.exit_code()};
              throw;
            }
          },
          timeout);
    } catch (const Error& error) {
      first_ = {error.what(), error.exit_code()};
    }
    return ends;
  }

  Outcome first_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(FailureTest, OthersReportRankPhaseStepAndMessage) {
  const auto ends = outcomes(4, seconds(30), [](World& world, Communicator& group) {
    world.set_phase("data", 7);
    group.barrier();
    if (world.rank() == 2) throw DataError("prompts.jsonl:12: key 'answer' is missing");
    world.set_phase("generation", 7);
    group.barrier();
  });
  const std::string cause = "prompts.jsonl:12: key 'answer' is missing";
  EXPECT_EQ(first_.message, cause);
  for (const int rank : {0, 1, 3}) {
    const auto& end = ends[static_cast<size_t>(rank)];
    EXPECT_EQ(end.message,
              fmt::format("rank {}: stopped because rank 2 failed in phase 'data', step 7: {}",
                          rank, cause));
    EXPECT_EQ(end.exit_code, ExitCode::kData);
  }
}

TEST_F(FailureTest, ARankThatWaitsForAnotherLearnsOfItToo) {
  // Rank 0 waits for rank 1 alone, which sleeps; rank 2 fails. Nothing closes between 0 and 1, so
  // only the watcher can tell rank 0.
  const auto start = std::chrono::steady_clock::now();
  auto rank_0_end = start;
  const auto ends = outcomes(3, seconds(30), [&](World& world, Communicator&) {
    if (world.rank() == 2) throw ConfigError("boom");
    auto pair = world.make_group({0, 1}, "pair");
    if (world.rank() == 1) std::this_thread::sleep_for(seconds(2));
    try {
      pair->barrier();
    } catch (const Error&) {
      if (world.rank() == 0) rank_0_end = std::chrono::steady_clock::now();
      throw;
    }
  });
  EXPECT_TRUE(contains(ends[0].message, "stopped because rank 2 failed")) << ends[0].message;
  EXPECT_EQ(ends[0].exit_code, ExitCode::kConfig);
  EXPECT_TRUE(contains(ends[1].message, "stopped because rank 2 failed")) << ends[1].message;
  EXPECT_LT(rank_0_end - start, milliseconds(1500));
}

TEST_F(FailureTest, AHangingRankIsNamedByAll) {
  for (const int hanging : {0, 1, 2}) {
    const auto ends = outcomes(3, seconds(1), [&](World& world, Communicator& group) {
      world.set_phase("policy_training", 3);
      group.barrier();
      if (world.rank() == hanging) std::this_thread::sleep_for(milliseconds(3000));
      group.barrier();
    });
    EXPECT_TRUE(contains(first_.message,
                         fmt::format("waited 1.0 s for rank {} in barrier of group all", hanging)))
        << first_.message;
    EXPECT_TRUE(contains(first_.message, "phase 'policy_training', step 3")) << first_.message;
    EXPECT_EQ(first_.exit_code, ExitCode::kComm);
    for (int rank = 0; rank < 3; ++rank) {
      const auto& message = ends[static_cast<size_t>(rank)].message;
      EXPECT_TRUE(contains(message, fmt::format("rank {} waits for nobody", hanging)))
          << "rank " << rank << " said: " << message;
    }
  }
}

TEST_F(FailureTest, AHangBehindAnotherWaitIsFollowedToItsEnd) {
  // Rank 0 waits for 1, 1 waits for 2, 2 hangs; rank 0 times out long before rank 1 would.
  const auto ends = outcomes(3, seconds(2), [](World& world, Communicator& group) {
    if (world.rank() == 2) std::this_thread::sleep_for(seconds(4));
    if (world.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(1000));
      world.make_group({1, 2}, "right")->barrier();
    }
    if (world.rank() == 0) world.make_group({0, 1}, "left")->barrier();
    group.barrier();
  });
  EXPECT_TRUE(contains(ends[0].message, "waited 2.0 s for rank 1 in barrier of group left"))
      << ends[0].message;
  EXPECT_TRUE(contains(ends[0].message, "rank 1 waits for rank 2 in barrier of group right"))
      << ends[0].message;
  EXPECT_TRUE(contains(ends[0].message, "rank 2 waits for nobody")) << ends[0].message;
  EXPECT_TRUE(contains(ends[1].message, "rank 2 waits for nobody")) << ends[1].message;
}

TEST_F(FailureTest, DifferentCollectivesAreToldFromAHang) {
  const auto ends = outcomes(2, seconds(1), [](World& world, Communicator& group) {
    float data[4] = {};
    const Tensor tensor(data, DType::kFloat32, Shape{4}, Device::cpu());
    if (world.rank() == 0) {
      group.all_reduce_sum(tensor, Stream::none());
    } else {
      group.broadcast(tensor, 0, Stream::none());
    }
  });
  EXPECT_TRUE(contains(first_.message, "they wait for each other")) << first_.message;
  EXPECT_TRUE(contains(first_.message, "all_reduce_sum")) << first_.message;
  EXPECT_TRUE(contains(first_.message, "broadcast")) << first_.message;
}

TEST_F(FailureTest, DifferentGroupsOfTheSameRanksDoNotMeet) {
  outcomes(2, seconds(1), [](World& world, Communicator&) {
    auto first = world.make_group({0, 1}, "twin");
    auto second = world.make_group({0, 1}, "twin");
    (world.rank() == 0 ? first : second)->barrier();
  });
  EXPECT_TRUE(contains(first_.message, "they wait for each other")) << first_.message;
}

TEST_F(FailureTest, DifferentSizesDoNotCrash) {
  outcomes(2, seconds(1), [](World& world, Communicator& group) {
    float data[4] = {};
    const Tensor tensor(data, DType::kFloat32, Shape{2 + world.rank()}, Device::cpu());
    group.all_reduce_sum(tensor, Stream::none());
  });
  EXPECT_TRUE(contains(first_.message, "different sizes")) << first_.message;
}

TEST_F(FailureTest, ARankThatLeavesWithoutAWordIsNamed) {
  const auto ends = outcomes(3, seconds(30), [](World& world, Communicator& group) {
    world.set_phase("validation", 2);
    if (world.rank() == 1) return;
    group.barrier();
  });
  EXPECT_TRUE(contains(first_.message, "connection to rank 1 closed in barrier of group all"))
      << first_.message;
  EXPECT_TRUE(contains(first_.message, "phase 'validation', step 2")) << first_.message;
  EXPECT_EQ(ends[1].message, "");
}

TEST_F(FailureTest, AnExceptionOfAnotherTypeStopsTheOthers) {
  std::string rank_1_said;
  try {
    run_ranks(2, [&](World& world) {
      if (world.rank() == 0) throw std::out_of_range("index 7");
      try {
        world.make_group({0, 1}, "pair")->barrier();
      } catch (const Error& error) {
        rank_1_said = error.what();
        throw;
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "index 7");
  }
  EXPECT_TRUE(contains(rank_1_said, "stopped because rank 0 failed")) << rank_1_said;
  EXPECT_TRUE(contains(rank_1_said, "index 7")) << rank_1_said;
}

TEST_F(FailureTest, TheSameErrorComesBackForEveryLaterCollective) {
  outcomes(2, seconds(1), [](World& world, Communicator& group) {
    if (world.rank() == 1) throw DataError("gone");
    std::string first;
    try {
      group.barrier();
    } catch (const CommError& error) {
      first = error.what();
    }
    try {
      world.make_group({0, 1}, "later")->barrier();
      ADD_FAILURE() << "a broken world went on";
    } catch (const CommError& error) {
      EXPECT_EQ(first, error.what());
    }
  });
}

TEST_F(FailureTest, LargeTransfersInFlightAreDroppedWithoutACrash) {
  for (int round = 0; round < 10; ++round) {
    const auto ends = outcomes(3, seconds(10), [&](World& world, Communicator& group) {
      std::vector<float> data(2'000'000);
      const Tensor tensor(data.data(), DType::kFloat32, Shape{2'000'000}, Device::cpu());
      if (world.rank() == 0) {
        std::this_thread::sleep_for(milliseconds(round));
        throw DataError("gone");
      }
      for (;;) {
        auto pair = world.make_group({1, 2}, "pair");
        pair->all_reduce_sum(tensor, Stream::none());
        group.all_reduce_sum(tensor, Stream::none());
      }
    });
    EXPECT_EQ(ends[1].exit_code, ExitCode::kData);
    EXPECT_EQ(ends[2].exit_code, ExitCode::kData);
  }
}

// Reads and writes as long as the ranks connect; then its disk is gone.
class BrokenStore final : public KeyValueStore {
 public:
  bool set_if_absent(const std::string& key, const std::string& value) override {
    if (is_broken_) throw ConfigError("rendezvous folder: cannot write");
    return inner_->set_if_absent(key, value);
  }
  std::optional<std::string> get(const std::string& key) override {
    if (is_broken_) throw ConfigError("rendezvous folder: cannot read");
    return inner_->get(key);
  }
  void fail_from_now_on() { is_broken_ = true; }

 private:
  std::shared_ptr<KeyValueStore> inner_ = make_memory_store();
  std::atomic<bool> is_broken_{false};
};

TEST_F(FailureTest, AStoreThatBreaksDoesNotReplaceTheFailure) {
  const auto store = std::make_shared<BrokenStore>();
  Outcome ends[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto world =
          World::connect({.rank = rank, .size = 2, .store = store, .timeout = seconds(1)});
      const auto group = world->make_group({0, 1}, "pair");
      group->barrier();
      store->fail_from_now_on();
      try {
        if (rank == 1) std::this_thread::sleep_for(seconds(4));
        group->barrier();
      } catch (const Error& error) {
        ends[rank] = {error.what(), error.exit_code()};
        world->record_failure(error);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ends[0].exit_code, ExitCode::kComm) << ends[0].message;
  EXPECT_TRUE(contains(ends[0].message, "waited 1.0 s for rank 1")) << ends[0].message;
  EXPECT_EQ(ends[1].exit_code, ExitCode::kComm) << ends[1].message;
  EXPECT_TRUE(contains(ends[1].message, "connection to rank 0 closed")) << ends[1].message;
}

TEST_F(FailureTest, ThePhaseIsToldToWhoeverWatches) {
  std::vector<std::string> told;
  const auto world = World::connect({.rank = 0,
                                     .size = 1,
                                     .store = make_memory_store(),
                                     .on_phase = [&](const std::string& phase, int64_t step) {
                                       told.push_back(fmt::format("{} {}", phase, step));
                                     }});
  world->set_phase("refit", 3);
  world->set_phase("generation", 3);
  EXPECT_EQ(told, (std::vector<std::string>{"refit 3", "generation 3"}));
}

TEST_F(FailureTest, MissingRanksAreNamedAtConnect) {
  const auto store = make_memory_store();
  try {
    World::connect({.rank = 1, .size = 4, .store = store, .timeout = milliseconds(300)});
    FAIL() << "connected to nobody";
  } catch (const CommError& error) {
    EXPECT_TRUE(contains(error.what(), "waited 0.3 s for ranks 0, 2, 3 to connect"))
        << error.what();
  }
}

TEST_F(FailureTest, AFailureBeforeConnectingReachesThoseWhoWait) {
  const auto store = make_memory_store();
  store->set_if_absent(kFailureKey,
                       encode_failure({0, ExitCode::kConfig, "", 0, "config.yaml:3: no"}));
  try {
    World::connect({.rank = 1, .size = 2, .store = store});
    FAIL() << "connected to nobody";
  } catch (const PeerFailureError& error) {
    EXPECT_STREQ(error.what(), "rank 1: stopped because rank 0 failed: config.yaml:3: no");
    EXPECT_EQ(error.exit_code(), ExitCode::kConfig);
  }
}

TEST_F(FailureTest, AUsedRendezvousIsRefused) {
  const auto store = make_memory_store();
  store->set_if_absent("hello/0", "127.0.0.1");
  EXPECT_THROW(World::connect({.rank = 0, .size = 2, .store = store}), CommError);
}

}  // namespace
}  // namespace grpo::parallel
