#include "parallel/comm/world.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "parallel/comm/key_value_store.h"
#include "tests/run_ranks.h"
#include "tests/temporary_folder.h"

namespace grpo::parallel {
namespace {

using std::chrono::milliseconds;
using testing::TemporaryFolder;

void check_store(KeyValueStore& store) {
  EXPECT_FALSE(store.get("key/1").has_value());
  EXPECT_TRUE(store.set_if_absent("key/1", "first"));
  EXPECT_FALSE(store.set_if_absent("key/1", "second"));
  EXPECT_EQ(store.get("key/1"), "first");
  EXPECT_TRUE(store.set_if_absent("empty", ""));
  EXPECT_EQ(store.get("empty"), "");
  const std::string binary("\0\n\xff", 3);
  EXPECT_TRUE(store.set_if_absent("binary", binary));
  EXPECT_EQ(store.get("binary"), binary);
  EXPECT_EQ(store.wait("absent", milliseconds(30)), std::nullopt);
}

// Many writers, one winner, and every reader sees the winner's whole value.
void check_race(const std::function<std::shared_ptr<KeyValueStore>()>& open) {
  for (int round = 0; round < 20; ++round) {
    const std::string key = "race/" + std::to_string(round);
    std::atomic<int> winners{0};
    std::vector<std::string> seen(8);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < seen.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto store = open();
        if (store->set_if_absent(key, std::string(1000, static_cast<char>('a' + i)))) ++winners;
        seen[i] = store->wait(key, milliseconds(5000)).value_or("none");
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(winners.load(), 1);
    for (const auto& value : seen) {
      EXPECT_EQ(value.size(), 1000u);
      EXPECT_EQ(value, seen[0]);
    }
  }
}

TEST(KeyValueStore, MemoryStoreKeepsTheFirstValue) {
  const auto store = make_memory_store();
  check_store(*store);
  check_race([&] { return store; });
}

TEST(KeyValueStore, FileStoreKeepsTheFirstValue) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "made" / "on the way";
  check_store(*make_file_store(path));
  check_race([&] { return make_file_store(path); });
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    EXPECT_NE(entry.path().filename().string().substr(0, 4), ".new") << "a temporary file was left";
  }
}

TEST(KeyValueStore, FileStoreStandsAParentThatOtherRunsRemove) {
  const TemporaryFolder folder;
  const auto parent = folder.path() / "shared";
  std::atomic<bool> is_over = false;
  // As a run that ends: the parent goes whenever it is empty.
  std::thread others([&] {
    while (!is_over) {
      ::rmdir(parent.c_str());
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  for (int launch = 0; launch < 3000; ++launch) {
    EXPECT_NO_THROW(make_file_store(parent / "launch"));
    std::filesystem::remove_all(parent / "launch");
  }
  is_over = true;
  others.join();
}

TEST(KeyValueStore, FileStoreRefusesAFileInTheWay) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "file";
  std::ofstream(path) << "x";
  EXPECT_THROW(make_file_store(path), ConfigError);
}

TEST(KeyValueStore, WaitSeesAValueThatComesLater) {
  const auto store = make_memory_store();
  std::thread writer([&] {
    std::this_thread::sleep_for(milliseconds(30));
    store->set_if_absent("late", "value");
  });
  EXPECT_EQ(store->wait("late", milliseconds(5000)), "value");
  writer.join();
}

TEST(FailureRecord, RoundTrips) {
  const FailureRecord record{3, ExitCode::kData, "policy_training", 12, "two\nlines: 'quoted'"};
  const auto copy = decode_failure(encode_failure(record));
  EXPECT_EQ(copy.rank, 3);
  EXPECT_EQ(copy.exit_code, ExitCode::kData);
  EXPECT_EQ(copy.phase, "policy_training");
  EXPECT_EQ(copy.step, 12);
  EXPECT_EQ(copy.message, record.message);
  EXPECT_THROW(decode_failure("3\nx\n1\nphase\nmessage"), InternalError);
  EXPECT_THROW(decode_failure("3\n1"), InternalError);
}

TEST(World, OfOneRankNeedsNobody) {
  const auto world = World::connect({.rank = 0, .size = 1, .store = make_memory_store()});
  const auto group = world->make_group({0}, "dp");
  EXPECT_EQ(group->name(), "dp");
  EXPECT_EQ(group->size(), 1);
  group->barrier();
  world->set_phase("data", 1);
  world->record_failure(DataError("broken"));
  const auto failure = world->first_failure(milliseconds(0));
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->phase, "data");
  EXPECT_EQ(failure->message, "broken");
}

TEST(World, OnlyTheFirstFailureIsKept) {
  const auto world = World::connect({.rank = 0, .size = 1, .store = make_memory_store()});
  EXPECT_FALSE(world->first_failure(milliseconds(0)).has_value());
  world->record_failure(PeerFailureError(ExitCode::kData, "an echo"));
  EXPECT_FALSE(world->first_failure(milliseconds(0)).has_value());
  world->record_failure(DataError("first"));
  world->record_failure(ConfigError("second"));
  EXPECT_EQ(world->first_failure(milliseconds(0))->message, "first");
}

TEST(World, RefusesGroupsThatBreakTheContract) {
  grpo::testing::run_ranks(2, [](World& world) {
    EXPECT_THROW(world.make_group({}, "x"), InternalError);
    EXPECT_THROW(world.make_group({1, 0}, "x"), InternalError);
    EXPECT_THROW(world.make_group({0, 0, 1}, "x"), InternalError);
    EXPECT_THROW(world.make_group({0, 2}, "x"), InternalError);
    EXPECT_THROW(world.make_group({1 - world.rank()}, "x"), InternalError);
  });
}

// A rank that is done before others have connected must not take their connections away.
TEST(World, ARankMayLeaveAsSoonAsItIsConnected) {
  for (int round = 0; round < 60; ++round) grpo::testing::run_ranks(4, [](World&) {});
}

TEST(World, ConnectsThroughAFileStore) {
  const TemporaryFolder folder;
  std::atomic<int> num_done{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto world = World::connect(
          {.rank = rank, .size = 3, .store = make_file_store(folder.path() / "rendezvous")});
      world->make_group({0, 1, 2}, "all")->barrier();
      ++num_done;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_done.load(), 3);
}

TEST(World, AGroupThatOutlivesItsWorldSaysSo) {
  const auto store = make_memory_store();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto world = World::connect({.rank = rank, .size = 2, .store = store});
      const auto group = world->make_group({0, 1}, "pair");
      group->barrier();
      world.reset();
      EXPECT_THROW(group->barrier(), InternalError);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace grpo::parallel
