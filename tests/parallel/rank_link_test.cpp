// A wait outside of the transport that is given up: what its rank and the others then hear.
#include "parallel/comm/rank_link.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace grpo::parallel {
namespace {

using Trouble = RankLink::Trouble;

std::string error_of_transfer(RankLink& link, int peer, bool* follows_from_another = nullptr) {
  std::array<uint8_t, 1> out{}, in{};
  const WireMessage send{peer, out.data(), 1, 7};
  const WireMessage receive{peer, in.data(), 1, 7};
  try {
    link.transfer("all_gather", "dp", {&send, 1}, {&receive, 1});
  } catch (const CommError& error) {
    if (follows_from_another != nullptr) {
      *follows_from_another = dynamic_cast<const PeerFailureError*>(&error) != nullptr;
    }
    return error.what();
  }
  return "no error";
}

// Two connected ranks; rank 0 gives up in phase "policy_training" of step 3.
std::array<std::string, 2> give_up(Trouble trouble, bool* follows_from_another) {
  const auto store = make_memory_store();
  std::array<std::string, 2> errors;
  std::array<std::thread, 2> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads[static_cast<size_t>(rank)] = std::thread([&, rank] {
      RankLink link(
          {.rank = rank, .size = 2, .store = store, .timeout = std::chrono::milliseconds(20'000)});
      link.connect();
      if (rank == 0) {
        link.set_phase("policy_training", 3);
        link.rethrow_failure();  // nothing happened yet
        link.give_up(trouble, {1}, "all_gather of group gtp_remat", "unhandled system error");
        errors[0] = error_of_transfer(link, 1);
        EXPECT_THROW(link.rethrow_failure(), CommError);
        EXPECT_EQ(error_of_transfer(link, 1), errors[0]) << "every later transfer says the same";
      } else {
        errors[1] = error_of_transfer(link, 0, follows_from_another);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(RankLink, ABrokenDeviceWaitIsToldToEveryRank) {
  bool follows = false;
  const auto errors = give_up(Trouble::kBroken, &follows);
  EXPECT_EQ(errors[0],
            "rank 0, phase 'policy_training', step 3: all_gather of group gtp_remat with rank 1 "
            "failed: unhandled system error");
  EXPECT_TRUE(follows);
  EXPECT_NE(errors[1].find("rank 0 failed in phase 'policy_training', step 3: all_gather of group "
                           "gtp_remat with rank 1 failed"),
            std::string::npos)
      << errors[1];
}

TEST(RankLink, ADeviceWaitThatTimedOutNamesWhatItWaitedFor) {
  bool follows = false;
  const auto errors = give_up(Trouble::kTimeout, &follows);
  EXPECT_NE(errors[0].find("waited 20.0 s for rank 1 in all_gather of group gtp_remat; "),
            std::string::npos)
      << errors[0];
  EXPECT_TRUE(follows) << errors[1];
}

}  // namespace
}  // namespace grpo::parallel
