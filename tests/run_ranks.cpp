#include "tests/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/test_device.h"

namespace grpo::testing {
namespace {

// Keeps the exception that ended the first rank to fail.
class FirstFailure {
 public:
  void add(std::exception_ptr failure, bool is_echo) {
    const std::lock_guard lock(mutex_);
    auto& slot = is_echo ? echo_ : cause_;
    if (!slot) slot = std::move(failure);
  }

  void rethrow() const {
    if (cause_) std::rethrow_exception(cause_);
    if (echo_) std::rethrow_exception(echo_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_;
  std::exception_ptr echo_;  // of a failure elsewhere
};

void run_rank(const parallel::WorldOptions& options,
              const std::function<void(parallel::World&)>& fn, FirstFailure& first_failure) {
  std::unique_ptr<parallel::World> world;
  const auto failed = [&](const Error& error, bool is_echo) {
    first_failure.add(std::current_exception(), is_echo);
    if (world) world->record_failure(error);
  };
  set_rank_of_this_thread(options.rank, options.size);
  try {
    world = parallel::World::connect(options);
    fn(*world);
  } catch (const PeerFailureError& error) {
    failed(error, /*is_echo=*/true);
  } catch (const Error& error) {
    failed(error, /*is_echo=*/false);
  } catch (const std::exception& error) {
    failed(InternalError(error.what()), /*is_echo=*/false);
  } catch (...) {
    failed(InternalError("an exception of unknown type"), /*is_echo=*/false);
  }
}

}  // namespace

void run_ranks(int num_ranks, const std::function<void(parallel::World&)>& fn,
               std::chrono::milliseconds timeout) {
  const auto store = parallel::make_memory_store();  // fresh, so no nonce is needed
  FirstFailure first_failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const parallel::WorldOptions options{
          .rank = rank, .size = num_ranks, .store = store, .timeout = timeout};
      run_rank(options, fn, first_failure);
    });
  }
  for (auto& thread : threads) thread.join();
  first_failure.rethrow();
}

}  // namespace grpo::testing
