#include "app/launch/launch.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "app/launch/listen_host.h"
#include "model/core/errors.h"

namespace grpo::app {
namespace {

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

class Variables {
 public:
  explicit Variables(const VariableLookup& lookup) : lookup_(lookup) {}

  // An empty value counts as not set.
  std::optional<std::string> text(const std::string& name) const {
    auto value = lookup_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }
  bool has(const std::string& name) const { return text(name).has_value(); }

  // The first of `names` that is set.
  std::optional<std::string> first_of(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (auto value = text(name)) return value;
    }
    return std::nullopt;
  }

  std::optional<int64_t> integer(const std::string& name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int64_t number = 0;
    const char* end = value->data() + value->size();
    const auto result = std::from_chars(value->data(), end, number);
    if (result.ec != std::errc() || result.ptr != end || number < 0) {
      throw ConfigError(
          fmt::format("environment variable {}: '{}' is not a non-negative integer", name, *value));
    }
    return number;
  }

  int64_t required_integer(const std::string& name, const std::string& because) const {
    const auto value = integer(name);
    if (!value)
      throw ConfigError(
          fmt::format("environment variable {} is not set although {} is", name, because));
    return *value;
  }

 private:
  const VariableLookup& lookup_;
};

struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* detected_by;  // the variable that told the launcher
  const char* local_size =
      nullptr;  // of launchers that number the ranks of a machine in rank order
};

void check_local_size(const Variables& variables, const Names& names,
                      const LaunchEnvironment& environment) {
  if (names.local_size == nullptr) return;
  const auto local_size = variables.integer(names.local_size);
  if (!local_size) return;
  if (*local_size <= environment.local_rank || *local_size > environment.world_size) {
    throw ConfigError(fmt::format("environment variable {}: {} contradicts {} {} and {} {}",
                                  names.local_size, *local_size, names.local_rank,
                                  environment.local_rank, names.size, environment.world_size));
  }
  if (*local_size == environment.world_size && variables.has(names.local_rank) &&
      environment.local_rank != environment.rank) {
    throw ConfigError(
        fmt::format("environment variable {}: {} contradicts {} {}, as {} says that all {} ranks "
                    "share a machine",
                    names.local_rank, environment.local_rank, names.rank, environment.rank,
                    names.local_size, *local_size));
  }
}

LaunchEnvironment read_ranks(const Variables& variables, const Names& names) {
  const int64_t size = variables.required_integer(names.size, names.detected_by);
  const int64_t rank = variables.required_integer(names.rank, names.detected_by);
  const int64_t local_rank = variables.integer(names.local_rank).value_or(0);
  constexpr int64_t kMaxRanks = 1'000'000;
  if (size < 1 || size > kMaxRanks) {
    throw ConfigError(
        fmt::format("environment variable {}: {} is not a number of ranks", names.size, size));
  }
  if (rank >= size) {
    throw ConfigError(fmt::format("environment variable {}: rank {} does not exist, as {} is {}",
                                  names.rank, rank, names.size, size));
  }
  if (local_rank >= size) {
    throw ConfigError(fmt::format("environment variable {}: {} is not below {}, which is {}",
                                  names.local_rank, local_rank, names.size, size));
  }
  LaunchEnvironment environment;
  environment.launcher = names.launcher;
  environment.rank = static_cast<int>(rank);
  environment.world_size = static_cast<int>(size);
  environment.local_rank = static_cast<int>(local_rank);
  check_local_size(variables, names, environment);
  return environment;
}

// A value that is equal for the children of one process and differs from that of any other process
// of this machine: parent id and its start time since boot.
std::string parent_identity() {
  const auto parent = ::getppid();
  std::ifstream file(fmt::format("/proc/{}/stat", parent));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // Field 22, counted after the command's name, which may hold blanks.
  const size_t name_end = text.rfind(')');
  std::string start_time = "0";
  if (name_end != std::string::npos) {
    std::istringstream fields(text.substr(name_end + 1));
    for (int field = 3; field <= 22; ++field) fields >> start_time;
  }
  return fmt::format("{}-{}", parent, start_time);
}

// "<job>-<step>-<restarts>" inside a step of srun.
std::optional<std::string> slurm_step_identity(const Variables& variables) {
  const auto job = variables.text("SLURM_JOB_ID");
  const auto step = variables.text("SLURM_STEP_ID");
  if (!job || !step) return std::nullopt;
  return fmt::format("{}-{}-{}", *job, *step, variables.text("SLURM_RESTART_COUNT").value_or("0"));
}

// Sets nonce and host; `identity` is asked for only when GRPO_LAUNCH_ID does not replace it.
template <typename Identity>
LaunchEnvironment finish(LaunchEnvironment environment, const Variables& variables,
                         bool is_one_machine, const std::optional<std::string>& meeting_point,
                         Identity identity) {
  const auto own_id = variables.text("GRPO_LAUNCH_ID");
  environment.nonce = fmt::format("{}-{}", environment.launcher, own_id ? *own_id : identity());
  for (char& c : environment.nonce) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                          (c >= 'a' && c <= 'z') || c == '-' || c == '.' || c == '_';
    if (!is_plain) c = '_';
  }
  if (const auto host = variables.text("GRPO_HOST")) {
    environment.host = *host;
  } else if (!is_one_machine) {
    environment.host = listen_host(variables.text("SLURMD_NODENAME"), meeting_point);
  }
  return environment;
}

LaunchEnvironment read_torchrun(const Variables& variables) {
  const auto environment = read_ranks(variables, {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                                                  "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE"});
  const bool is_one_machine = variables.integer("LOCAL_WORLD_SIZE") == environment.world_size;
  const auto identity = [&] {
    const std::string run = *variables.text("TORCHELASTIC_RUN_ID");
    const std::string attempt = variables.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
    if (is_one_machine) {
      // The run id is often the same for every launch. The error file lies in <new
      // folder>/attempt_N/<local rank>/.
      const auto file = variables.text("TORCHELASTIC_ERROR_FILE");
      const auto folder =
          std::filesystem::path(file.value_or("")).parent_path().parent_path().parent_path();
      const std::string launch = folder.empty() ? parent_identity() : folder.string();
      return fmt::format("{}-{}-{}", run, attempt, launch);
    }
    const auto step = slurm_step_identity(variables);
    if (!step && run == "none") {
      throw ConfigError(
          "environment variable TORCHELASTIC_RUN_ID: 'none' does not tell this launch from others; "
          "start torchrun "
          "with --rdzv-id=VALUE, or set GRPO_LAUNCH_ID, to a value that is new for each launch");
    }
    return fmt::format("{}-{}-{}", run, attempt, step.value_or(""));
  };
  return finish(environment, variables, is_one_machine, variables.text("MASTER_ADDR"), identity);
}

// Ranks started by hand or by a script, with PyTorch's variables.
LaunchEnvironment read_by_hand(const Variables& variables) {
  const auto environment =
      read_ranks(variables, {"env", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                             variables.has("RANK") ? "RANK" : "WORLD_SIZE", "LOCAL_WORLD_SIZE"});
  const auto address = variables.text("MASTER_ADDR");
  const auto port = variables.integer("MASTER_PORT");
  const bool is_one_machine = environment.world_size == 1 ||
                              (variables.has("LOCAL_WORLD_SIZE")
                                   ? variables.integer("LOCAL_WORLD_SIZE") == environment.world_size
                                   : address && (*address == "localhost" || *address == "::1" ||
                                                 address->starts_with("127.")));
  const auto identity = [&] {
    if (environment.world_size == 1) return parent_identity();
    if (const auto step = slurm_step_identity(variables)) return *step;
    if (!address || !port) {
      throw ConfigError(fmt::format(
          "environment variables RANK and WORLD_SIZE are set, but {} is not, so nothing tells this "
          "launch from others; allowed: MASTER_ADDR and MASTER_PORT, or GRPO_LAUNCH_ID, with a "
          "value that is new for each launch",
          address ? "MASTER_PORT" : "MASTER_ADDR"));
    }
    return fmt::format("{}-{}", *address, *port);
  };
  return finish(environment, variables, is_one_machine, address, identity);
}

LaunchEnvironment read_open_mpi(const Variables& variables) {
  const auto environment = read_ranks(
      variables,
      {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
       variables.has("OMPI_COMM_WORLD_RANK") ? "OMPI_COMM_WORLD_RANK" : "OMPI_COMM_WORLD_SIZE"});
  const bool is_one_machine =
      variables.integer("OMPI_COMM_WORLD_LOCAL_SIZE") == environment.world_size;
  const auto identity = [&] {
    const auto job = variables.first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
    if (!job) {
      throw ConfigError(
          "mpirun sets neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid, so nothing tells this "
          "launch from "
          "others; set GRPO_LAUNCH_ID to a value that is new for each launch");
    }
    // The job's number follows from mpirun's process id, which containers repeat; addresses of the
    // daemon do not.
    const auto server =
        is_one_machine
            ? variables.first_of({"PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI2"})
            : variables.text("OMPI_MCA_orte_hnp_uri");
    return fmt::format("{}-{:016x}", *job, std::hash<std::string>()(server.value_or("")));
  };
  return finish(environment, variables, is_one_machine, std::nullopt, identity);
}

// MPICH, Intel MPI and others of its family.
LaunchEnvironment read_pmi(const Variables& variables) {
  const auto environment =
      read_ranks(variables, {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                             variables.has("PMI_RANK") ? "PMI_RANK" : "PMI_SIZE"});
  const bool is_one_machine = variables.integer("MPI_LOCALNRANKS") == environment.world_size;
  const auto identity = [&] {
    if (const auto step = slurm_step_identity(variables)) return *step;
    if (is_one_machine) return parent_identity();
    throw ConfigError(
        "PMI_RANK and PMI_SIZE are set, but nothing tells this launch from others; set "
        "GRPO_LAUNCH_ID to a value "
        "that is new for each launch");
  };
  return finish(environment, variables, is_one_machine, std::nullopt, identity);
}

LaunchEnvironment read_srun(const Variables& variables) {
  const char* size =
      variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const auto environment =
      read_ranks(variables, {"srun", "SLURM_PROCID", size, "SLURM_LOCALID", "SLURM_PROCID"});
  const char* nodes =
      variables.has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  const bool is_one_machine = variables.integer(nodes) == 1 || environment.world_size == 1;
  const auto identity = [&] {
    const auto step = slurm_step_identity(variables);
    if (!step)
      throw ConfigError("environment variable SLURM_JOB_ID is not set although SLURM_PROCID is");
    return *step;
  };
  return finish(environment, variables, is_one_machine, variables.text("SLURM_LAUNCH_NODE_IPADDR"),
                identity);
}

// True in a task that srun started. The shells of sbatch and salloc run in steps of reserved
// numbers, or in none.
bool is_srun_task(const Variables& variables) {
  constexpr int64_t kFirstReservedStep = 0xfffffff0;
  if (!variables.has("SLURM_PROCID")) return false;
  const auto step = variables.integer("SLURM_STEP_ID");
  return step && *step < kFirstReservedStep;
}

// Slurm's own PMI gives a task the numbers that SLURM_PROCID and SLURM_NTASKS have.
bool is_pmi_of_srun(const Variables& variables) {
  return is_srun_task(variables) && variables.text("PMI_RANK") == variables.text("SLURM_PROCID") &&
         variables.text("PMI_SIZE") == variables.text("SLURM_NTASKS");
}

// PyTorch's variables beside those of another launcher, as scripts set them, must say the same.
LaunchEnvironment without_contradiction(const Variables& variables, LaunchEnvironment environment) {
  const auto check = [&](const char* name, int64_t is) {
    const auto value = variables.integer(name);
    if (!value || *value == is) return;
    throw ConfigError(fmt::format(
        "environment variable {}: {} contradicts {}, which started this process as rank {} of {}",
        name, *value, environment.launcher, environment.rank, environment.world_size));
  };
  check("WORLD_SIZE", environment.world_size);
  check("RANK", environment.rank);
  return environment;
}

bool has_either(const Variables& variables, const char* rank, const char* size) {
  return variables.has(rank) || variables.has(size);
}

std::optional<LaunchEnvironment> read(const Variables& variables) {
  if (variables.has("TORCHELASTIC_RUN_ID")) return read_torchrun(variables);
  if (has_either(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) {
    return without_contradiction(variables, read_open_mpi(variables));
  }
  if (has_either(variables, "PMI_RANK", "PMI_SIZE") && !is_pmi_of_srun(variables)) {
    return without_contradiction(variables, read_pmi(variables));
  }
  if (is_srun_task(variables)) {
    const LaunchEnvironment task = read_srun(variables);
    // A task that itself started more ranks by hand.
    const auto size = variables.integer("WORLD_SIZE");
    if (variables.has("RANK") && size && *size > task.world_size) return read_by_hand(variables);
    return without_contradiction(variables, task);
  }
  if (has_either(variables, "RANK", "WORLD_SIZE")) return read_by_hand(variables);
  return std::nullopt;
}

}  // namespace

std::optional<LaunchEnvironment> read_launch_environment() {
  return read_launch_environment(process_variable);
}

std::optional<LaunchEnvironment> read_launch_environment(const VariableLookup& lookup) {
  return read(Variables(lookup));
}

bool speaks_for_launch() noexcept { return speaks_for_launch(process_variable); }

bool speaks_for_launch(const VariableLookup& lookup) noexcept {
  const Variables variables(lookup);
  try {
    const auto environment = read(variables);
    return !environment || environment->rank == 0;
  } catch (const std::exception&) {
    // The environment is what is wrong: with every rank alike, if this one has a rank at all.
  }
  constexpr std::pair<const char*, const char*> kRanksAndSizes[] = {
      {"RANK", "WORLD_SIZE"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS"}};
  for (const auto& [rank_name, size_name] : kRanksAndSizes) {
    try {
      const auto rank = variables.integer(rank_name);
      if (rank) return *rank == 0 || *rank >= variables.integer(size_name).value_or(*rank + 1);
    } catch (const std::exception&) {
      return true;
    }
  }
  return true;
}

std::filesystem::path rendezvous_folder(const std::filesystem::path& parent,
                                        const LaunchEnvironment& environment) {
  return parent / ".rendezvous" / environment.nonce;
}

}  // namespace grpo::app
