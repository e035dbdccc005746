#include "app/launch/rank_session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <numeric>

#include "app/launch/local_ranks.h"
#include "app/launch/stop_signals.h"
#include "app/text/error_line.h"
#include "model/core/errors.h"

namespace grpo::app {

namespace {

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

// The report of a rank that could not join the world, so that the others stop waiting for it.
void record_without_world(parallel::KeyValueStore& store, int rank, const Error& error) noexcept {
  try {
    store.set_if_absent(
        parallel::kFailureKey,
        parallel::encode_failure({rank, error.exit_code(), "connect", 0, error.what()}));
  } catch (const std::exception&) {
    // Nowhere left to say it; the error itself is printed.
  }
}

std::optional<parallel::FailureRecord> first_failure(parallel::KeyValueStore& store) noexcept {
  try {
    const auto text = store.get(parallel::kFailureKey);
    if (!text) return std::nullopt;
    return parallel::decode_failure(*text);
  } catch (const std::exception&) {
    return std::nullopt;  // this rank's own error stands
  }
}

// Prints the error unless it follows from another rank's, and returns the run's exit code.
int report(parallel::KeyValueStore& store, int rank, const Error& error) {
  const auto record = first_failure(store);
  const bool is_consequence = dynamic_cast<const PeerFailureError*>(&error) != nullptr;
  const bool is_first = !record || record->rank == rank;
  if (is_first && !is_consequence) print_rank_error(rank, error.what());
  return static_cast<int>(record ? record->exit_code : error.exit_code());
}

ExitCode run_in_world(const RankPlan& plan, const LaunchEnvironment& environment,
                      const std::shared_ptr<parallel::KeyValueStore>& store,
                      const std::function<ExitCode(RankContext&)>& body) {
  std::unique_ptr<parallel::World> world;
  try {
    world = parallel::World::connect({environment.rank, environment.world_size, store,
                                      environment.host, plan.timeout, environment.report_phase});
  } catch (const PeerFailureError&) {
    throw;
  } catch (const Error& error) {
    record_without_world(*store, environment.rank, error);
    throw Error(
        error.exit_code(),
        fmt::format("{}; ranks meet in {}, which must be the same folder for all of them",
                    error.what(), rendezvous_folder(plan.meeting_folder, environment).string()));
  }
  try {
    RankContext context{environment, *world, stop_requested()};
    const ExitCode code = body(context);
    // Nobody closes its connections while another still works.
    std::vector<int> everyone(static_cast<size_t>(world->size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    world->make_group(everyone, "end of run")->barrier();
    return code;
  } catch (...) {
    // Recorded before the connections close: the others then know why they closed.
    try {
      const std::exception_ptr error = as_error(std::current_exception());
      world->rethrow_failure();
      std::rethrow_exception(error);
    } catch (const Error& error) {
      world->record_failure(error);
      throw;
    }
  }
}

void remove_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  std::filesystem::remove(folder.parent_path(), ignored);  // unless another launch meets there
}

// After a failure under a launcher the rank that leaves last removes the folder: until then others
// may read in it why the run stopped. A rank that was killed leaves without a word; then the folder
// stays.
void leave(parallel::KeyValueStore& store, const LaunchEnvironment& environment,
           const std::filesystem::path& folder) noexcept {
  const auto key = [](int rank) { return fmt::format("left/{}", rank); };
  try {
    store.set_if_absent(key(environment.rank), "");
    for (int rank = 0; rank < environment.world_size; ++rank) {
      if (!store.get(key(rank))) return;
    }
    remove_folder(folder);
  } catch (const std::exception&) {
    // Somebody else removes it, or nobody can.
  }
}

std::shared_ptr<parallel::KeyValueStore> make_store(const LaunchEnvironment& environment,
                                                    const std::filesystem::path& folder) {
  if (environment.world_size > 1) return parallel::make_file_store(folder);
  // Nobody to meet; whoever writes into the folder around it says what is wrong there.
  std::error_code ignored;
  std::filesystem::create_directories(folder.parent_path().parent_path(), ignored);
  return parallel::make_memory_store();
}

int run_rank(const RankPlan& plan, const LaunchEnvironment& environment,
             const std::function<ExitCode(RankContext&)>& body) {
  const auto folder = rendezvous_folder(plan.meeting_folder, environment);
  std::shared_ptr<parallel::KeyValueStore> store;
  try {
    store = make_store(environment, folder);
    const ExitCode code = run_in_world(plan, environment, store, body);
    if (plan.environment && environment.rank == 0) remove_folder(folder);
    return static_cast<int>(code);
  } catch (...) {
    try {
      std::rethrow_exception(as_error(std::current_exception()));
    } catch (const Error& error) {
      if (store != nullptr) {
        const int code = report(*store, environment.rank, error);
        if (plan.environment) leave(*store, environment, folder);
        return code;
      }
      // Every rank of a machine meets the same folder.
      if (environment.local_rank == 0) print_rank_error(environment.rank, error.what());
      return static_cast<int>(error.exit_code());
    }
  }
}

// Where the ranks of this machine meet: not beside what they write, so that a full disk there
// cannot keep them from saying so. The user's own, as others may have theirs.
std::filesystem::path local_meeting_folder(const std::filesystem::path& otherwise) {
  std::error_code error;
  const auto temporary = std::filesystem::temp_directory_path(error);
  if (error) return otherwise;
  const auto own = temporary / fmt::format("grpo_train-{}", ::geteuid());
  ::mkdir(own.c_str(), 0700);
  struct stat status {};
  const bool is_own = ::lstat(own.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                      status.st_uid == ::geteuid() && ::access(own.c_str(), W_OK | X_OK) == 0;
  return is_own ? own : otherwise;
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
    return plan;
  }
  plan.meeting_folder = local_meeting_folder(meeting_folder);
  if (num_local_ranks) {
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
  // A rank that is late after a failure has had its time to answer.
  const auto grace = std::min<std::chrono::milliseconds>(plan.timeout, std::chrono::seconds(10));
  const int code = run_local_ranks(plan.world_size, plan.meeting_folder, rank_main, grace);
  std::error_code ignored;
  std::filesystem::remove(plan.meeting_folder, ignored);  // unless something lies there
  return code;
}

}  // namespace grpo::app
