#include "app/rank_session.h"

#include <signal.h>

#include <exception>
#include <numeric>

#include "app/local_ranks.h"
#include "model/core/errors.h"

namespace grpo::app {

namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

extern "C" void request_stop(int) { stop_requested.store(true, std::memory_order_relaxed); }

void catch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  // A second Ctrl-C does not wait for the step to end.
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

// Whatever ended this rank, as one of our errors.
std::exception_ptr as_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error&) {
    return thrown;
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(Error(ExitCode::kOther, "out of host memory"));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(Error(ExitCode::kOther, error.what()));
  }
}

void print_rank_error(int rank, const std::string& message) {
  const std::string name = fmt::format("rank {}", rank);
  const bool names_rank = message.starts_with(name + ":") || message.starts_with(name + ",");
  print_error(names_rank ? message : fmt::format("{}: {}", name, message));
}

// The report of a rank that could not join the world, so that the others stop waiting for it.
void record_without_world(parallel::KeyValueStore& store, int rank, const Error& error) {
  store.set_if_absent(
      parallel::kFailureKey,
      parallel::encode_failure({rank, error.exit_code(), "connect", 0, error.what()}));
}

// Prints the error unless it follows from another rank's, and returns the run's exit code.
int report(parallel::KeyValueStore& store, int rank, const Error& error) {
  const auto record = store.get(parallel::kFailureKey);
  const bool is_consequence = dynamic_cast<const PeerFailureError*>(&error) != nullptr;
  const bool is_first = !record || parallel::decode_failure(*record).rank == rank;
  if (is_first && !is_consequence) print_rank_error(rank, error.what());
  if (record) return static_cast<int>(parallel::decode_failure(*record).exit_code);
  return static_cast<int>(error.exit_code());
}

ExitCode run_in_world(const RankPlan& plan, const LaunchEnvironment& environment,
                      const std::shared_ptr<parallel::KeyValueStore>& store,
                      const std::function<ExitCode(RankContext&)>& body) {
  std::unique_ptr<parallel::World> world;
  try {
    world = parallel::World::connect(
        {environment.rank, environment.world_size, store, environment.host, plan.timeout});
  } catch (const PeerFailureError&) {
    throw;
  } catch (const Error& error) {
    record_without_world(*store, environment.rank, error);
    throw Error(error.exit_code(),
                fmt::format("{}; ranks meet in {}, which must be the same folder for all of them",
                            error.what(), plan.meeting_folder.string()));
  }
  try {
    RankContext context{environment, *world, stop_requested};
    const ExitCode code = body(context);
    // Nobody closes its connections while another still works.
    std::vector<int> everyone(static_cast<size_t>(world->size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    world->make_group(everyone, "end of run")->barrier();
    return code;
  } catch (...) {
    // Recorded before the connections close: the others then know why they closed.
    try {
      std::rethrow_exception(as_error(std::current_exception()));
    } catch (const Error& error) {
      world->record_failure(error);
      throw;
    }
  }
}

int run_rank(const RankPlan& plan, const LaunchEnvironment& environment,
             const std::function<ExitCode(RankContext&)>& body) {
  catch_stop_signals();
  const auto folder = rendezvous_folder(plan.meeting_folder, environment);
  std::shared_ptr<parallel::KeyValueStore> store;
  try {
    store = parallel::make_file_store(folder);
    const ExitCode code = run_in_world(plan, environment, store, body);
    if (plan.environment && environment.rank == 0) {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
      std::filesystem::remove(folder.parent_path(), ignored);  // unless another launch meets there
    }
    return static_cast<int>(code);
  } catch (...) {
    try {
      std::rethrow_exception(as_error(std::current_exception()));
    } catch (const Error& error) {
      if (store != nullptr) return report(*store, environment.rank, error);
      print_rank_error(environment.rank, error.what());
      return static_cast<int>(error.exit_code());
    }
  }
}

}  // namespace

RankPlan plan_ranks(const std::optional<int>& num_local_ranks,
                    const parallel::ParallelConfig& config,
                    const std::filesystem::path& meeting_folder) {
  RankPlan plan;
  plan.environment = read_launch_environment();
  plan.timeout = std::chrono::milliseconds(static_cast<int64_t>(config.timeout_s * 1000.0));
  plan.meeting_folder = meeting_folder;
  if (plan.environment) {
    if (num_local_ranks) {
      throw ConfigError(
          fmt::format("--nproc {} is given, but {} started this process as rank {} of {}; allowed: "
                      "one of the two",
                      *num_local_ranks, plan.environment->launcher, plan.environment->rank,
                      plan.environment->world_size));
    }
    plan.world_size = plan.environment->world_size;
  } else if (num_local_ranks) {
    plan.world_size = *num_local_ranks;
  } else {
    const int64_t size = config.tensor * config.gtp_remat * std::max<int64_t>(config.data, 1);
    constexpr int64_t kMaxLocalRanks = 4096;
    if (size > kMaxLocalRanks) {
      throw ConfigError(
          fmt::format("parallel.tensor {} x parallel.gtp_remat {} x parallel.data {} would start "
                      "{} local ranks; "
                      "allowed: at most {}, or a launcher (srun, torchrun, mpirun)",
                      config.tensor, config.gtp_remat, config.data, size, kMaxLocalRanks));
    }
    plan.world_size = static_cast<int>(size);
  }
  return plan;
}

int run_ranks(const RankPlan& plan, const std::function<ExitCode(RankContext&)>& body) {
  const auto rank_main = [&](const LaunchEnvironment& environment) {
    return run_rank(plan, environment, body);
  };
  if (plan.environment) return rank_main(*plan.environment);
  return run_local_ranks(plan.world_size, plan.meeting_folder, rank_main);
}

void print_error(const std::string& message) {
  // A console that cannot be written must not change the exit code.
  const std::string line = fmt::format("grpo_train: error: {}\n", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace grpo::app
