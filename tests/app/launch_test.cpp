#include "app/launch/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "app/launch/listen_host.h"
#include "model/core/errors.h"

namespace grpo::app {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<LaunchEnvironment> read(const Environment& environment) {
  return read_launch_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// The error that reading `environment` ends in.
std::string error_of(const Environment& environment) {
  try {
    read(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Environment with(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

const Environment kSrun = {{"SLURM_JOB_ID", "42"},      {"SLURM_STEP_ID", "3"},
                           {"SLURM_PROCID", "1"},       {"SLURM_NTASKS", "4"},
                           {"SLURM_LOCALID", "1"},      {"SLURM_NNODES", "1"},
                           {"SLURMD_NODENAME", "node7"}};
const Environment kTorchrun = {
    {"RANK", "2"},
    {"WORLD_SIZE", "4"},
    {"LOCAL_RANK", "2"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"TORCHELASTIC_RUN_ID", "none"},
    {"TORCHELASTIC_RESTART_COUNT", "0"},
    {"TORCHELASTIC_ERROR_FILE", "/tmp/x/none_abc/attempt_0/2/error.json"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "0"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "prterun-host-77@1"}};
const Environment kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

TEST(LaunchEnvironment, NothingSetMeansNoLauncher) {
  EXPECT_FALSE(read({}).has_value());
  EXPECT_FALSE(read({{"MASTER_ADDR", "node1"}, {"LOCAL_RANK", "0"}}).has_value());
}

TEST(LaunchEnvironment, Srun) {
  const auto environment = read(kSrun);
  ASSERT_TRUE(environment.has_value());
  EXPECT_EQ(environment->launcher, "srun");
  EXPECT_EQ(environment->rank, 1);
  EXPECT_EQ(environment->world_size, 4);
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->nonce, "srun-42-3-0");
  EXPECT_EQ(environment->host, "127.0.0.1");
  EXPECT_EQ(read(with(kSrun, {{"SLURM_RESTART_COUNT", "2"}}))->nonce, "srun-42-3-2");
  EXPECT_EQ(read(with(kSrun, {{"SLURM_STEP_NUM_TASKS", "2"}}))->world_size, 2);
}

TEST(LaunchEnvironment, TheShellsOfSbatchAndSallocAreNoLaunch) {
  Environment batch = kSrun;
  batch.erase("SLURM_STEP_ID");
  EXPECT_FALSE(read(batch).has_value());
  EXPECT_FALSE(read(with(kSrun, {{"SLURM_STEP_ID", "4294967291"}})).has_value());  // batch step
  EXPECT_FALSE(
      read(with(kSrun, {{"SLURM_STEP_ID", "4294967290"}})).has_value());  // interactive step
}

TEST(LaunchEnvironment, Torchrun) {
  const auto environment = read(kTorchrun);
  ASSERT_TRUE(environment.has_value());
  EXPECT_EQ(environment->launcher, "torchrun");
  EXPECT_EQ(environment->rank, 2);
  EXPECT_EQ(environment->world_size, 4);
  EXPECT_EQ(environment->local_rank, 2);
  EXPECT_EQ(environment->host, "127.0.0.1");
  // Another rank of this launch, a restart of it, and another launch with the same run id.
  const auto peer =
      with(kTorchrun, {{"RANK", "3"},
                       {"LOCAL_RANK", "3"},
                       {"TORCHELASTIC_ERROR_FILE", "/tmp/x/none_abc/attempt_0/3/error.json"}});
  EXPECT_EQ(read(peer)->nonce, environment->nonce);
  const auto restart = with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}});
  EXPECT_NE(read(restart)->nonce, environment->nonce);
  const auto other =
      with(kTorchrun, {{"TORCHELASTIC_ERROR_FILE", "/tmp/x/none_xyz/attempt_0/2/error.json"}});
  EXPECT_NE(read(other)->nonce, environment->nonce);
}

TEST(LaunchEnvironment, TorchrunOverSeveralNodesNeedsARunId) {
  const auto nodes = with(kTorchrun, {{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}});
  EXPECT_NE(error_of(nodes).find("TORCHELASTIC_RUN_ID: 'none'"), std::string::npos)
      << error_of(nodes);
  EXPECT_EQ(read(with(nodes, {{"TORCHELASTIC_RUN_ID", "run5"}}))->nonce, "torchrun-run5-0-");
  EXPECT_EQ(read(with(nodes, {{"SLURM_JOB_ID", "9"}, {"SLURM_STEP_ID", "0"}}))->nonce,
            "torchrun-none-0-9-0-0");
  EXPECT_EQ(read(with(nodes, {{"GRPO_LAUNCH_ID", "mine"}}))->nonce, "torchrun-mine");
}

const Environment kByHand = {{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "29500"}};

TEST(LaunchEnvironment, RanksStartedByHand) {
  const auto environment = read(kByHand);
  ASSERT_TRUE(environment.has_value());
  EXPECT_EQ(environment->launcher, "env");
  EXPECT_EQ(environment->rank, 1);
  EXPECT_EQ(environment->world_size, 2);
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->nonce, "env-localhost-29500");
  EXPECT_EQ(environment->host, "127.0.0.1");
  EXPECT_EQ(read(with(kByHand, {{"GRPO_LAUNCH_ID", "mine"}, {"MASTER_PORT", ""}}))->nonce,
            "env-mine");
  const auto in_step = with(kByHand, {{"SLURM_JOB_ID", "9"}, {"SLURM_STEP_ID", "4294967291"}});
  EXPECT_EQ(read(in_step)->nonce, "env-9-4294967291-0");
  const auto nodes =
      with(kByHand, {{"MASTER_ADDR", "10.0.0.1"}, {"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}});
  EXPECT_EQ(read(nodes)->host, listen_host(std::nullopt, "10.0.0.1"));
}

TEST(LaunchEnvironment, HalfAnEnvironmentIsRefused) {
  EXPECT_EQ(error_of({{"RANK", "0"}}),
            "environment variable WORLD_SIZE is not set although RANK is");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}}),
            "environment variable RANK is not set although WORLD_SIZE is");
  EXPECT_EQ(
      error_of({{"OMPI_COMM_WORLD_SIZE", "2"}}),
      "environment variable OMPI_COMM_WORLD_RANK is not set although OMPI_COMM_WORLD_SIZE is");
  EXPECT_EQ(error_of({{"PMI_SIZE", "2"}}),
            "environment variable PMI_RANK is not set although PMI_SIZE is");
  EXPECT_NE(error_of(with(kByHand, {{"MASTER_PORT", ""}})).find("MASTER_PORT is not"),
            std::string::npos);
  EXPECT_NE(error_of(with(kByHand, {{"MASTER_ADDR", ""}})).find("MASTER_ADDR is not"),
            std::string::npos);
}

TEST(LaunchEnvironment, ContradictionsAreRefused) {
  const auto expect_error = [](const Environment& environment, const std::string& part) {
    EXPECT_NE(error_of(environment).find(part), std::string::npos) << error_of(environment);
  };
  expect_error(with(kSrun, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}),
               "RANK: 2 contradicts srun, which started this process as rank 1 of 4");
  expect_error(with(kSrun, {{"WORLD_SIZE", "8"}}), "WORLD_SIZE: 8 contradicts srun");
  expect_error(with(kOpenMpi, {{"RANK", "1"}}), "RANK: 1 contradicts mpirun");
  expect_error(with(kByHand, {{"LOCAL_WORLD_SIZE", "1"}}),
               "LOCAL_WORLD_SIZE: 1 contradicts LOCAL_RANK 1 and WORLD_SIZE 2");
  expect_error(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}), "LOCAL_WORLD_SIZE: 5 contradicts");
  expect_error(with(kTorchrun, {{"LOCAL_RANK", "1"}}), "LOCAL_RANK: 1 contradicts RANK 2");
  // The same said twice is no contradiction, and a task may start more ranks by hand.
  EXPECT_EQ(read(with(kSrun, {{"RANK", "1"}, {"WORLD_SIZE", "4"}}))->launcher, "srun");
  EXPECT_EQ(read(with(kSrun, {{"WORLD_SIZE", "4"}}))->launcher, "srun");
  EXPECT_EQ(read(with(kSrun, {{"RANK", "6"}, {"WORLD_SIZE", "8"}}))->launcher, "env");
}

TEST(LaunchEnvironment, OneRankSpeaksForAll) {
  const auto speaks = [](const Environment& environment) {
    return speaks_for_launch([&](const std::string& name) -> std::optional<std::string> {
      const auto found = environment.find(name);
      if (found == environment.end()) return std::nullopt;
      return found->second;
    });
  };
  EXPECT_TRUE(speaks({}));
  EXPECT_TRUE(speaks(with(kSrun, {{"SLURM_PROCID", "0"}})));
  EXPECT_FALSE(speaks(kSrun));
  EXPECT_FALSE(speaks(kTorchrun));
  // An environment that is itself wrong, with every rank or with this one.
  const auto without_id = with(kTorchrun, {{"LOCAL_WORLD_SIZE", "3"}});
  EXPECT_FALSE(speaks(without_id));
  EXPECT_TRUE(speaks(with(without_id, {{"RANK", "0"}, {"LOCAL_RANK", "0"}})));
  EXPECT_TRUE(speaks(with(kTorchrun, {{"RANK", "4"}})));
  EXPECT_TRUE(speaks(with(kTorchrun, {{"RANK", "x"}})));
  EXPECT_TRUE(speaks({{"WORLD_SIZE", "2"}}));
}

TEST(LaunchEnvironment, OpenMpi) {
  const auto environment = read(kOpenMpi);
  ASSERT_TRUE(environment.has_value());
  EXPECT_EQ(environment->launcher, "mpirun");
  EXPECT_EQ(environment->world_size, 2);
  EXPECT_EQ(environment->nonce.find("mpirun-prterun-host-77_1-"), 0u) << environment->nonce;
  EXPECT_NE(read(with(kOpenMpi, {{"PMIX_SERVER_URI2", "a;tcp4://127.0.0.1:5"}}))->nonce,
            environment->nonce);
  Environment old = kOpenMpi;
  old.erase("PMIX_NAMESPACE");
  EXPECT_NE(error_of(old).find("PMIX_NAMESPACE"), std::string::npos) << error_of(old);
  EXPECT_EQ(read(with(old, {{"OMPI_MCA_ess_base_jobid", "8"}}))->nonce.find("mpirun-8-"), 0u);
}

TEST(LaunchEnvironment, MpichAndIntelMpi) {
  const auto environment = read(kMpich);
  ASSERT_TRUE(environment.has_value());
  EXPECT_EQ(environment->launcher, "mpirun");
  EXPECT_EQ(environment->rank, 1);
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(read(kMpich)->nonce, environment->nonce);
  const auto nodes = with(kMpich, {{"MPI_LOCALNRANKS", "1"}});
  EXPECT_NE(error_of(nodes).find("GRPO_LAUNCH_ID"), std::string::npos) << error_of(nodes);
}

TEST(LaunchEnvironment, TheInnermostLauncherWins) {
  EXPECT_EQ(read(with(kSrun, kTorchrun))->launcher, "torchrun");
  EXPECT_EQ(read(with(kSrun, kOpenMpi))->launcher, "mpirun");
  EXPECT_EQ(read(with(kSrun, kMpich))->world_size, 2);
  // srun --mpi=pmi2 sets PMI's variables to its own numbers.
  const auto pmi2 = with(kSrun, {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}});
  EXPECT_EQ(read(pmi2)->launcher, "srun");
}

TEST(LaunchEnvironment, BadValuesAreNamed) {
  const auto expect_error = [](const Environment& environment, const std::string& part) {
    EXPECT_NE(error_of(environment).find(part), std::string::npos) << error_of(environment);
  };
  expect_error(with(kSrun, {{"SLURM_PROCID", "one"}}),
               "SLURM_PROCID: 'one' is not a non-negative integer");
  expect_error(with(kSrun, {{"SLURM_PROCID", "-1"}}), "SLURM_PROCID: '-1'");
  expect_error(with(kSrun, {{"SLURM_PROCID", "4"}}),
               "SLURM_PROCID: rank 4 does not exist, as SLURM_NTASKS is 4");
  expect_error(with(kSrun, {{"SLURM_NTASKS", "0"}}), "SLURM_NTASKS: 0 is not a number of ranks");
  expect_error(with(kSrun, {{"SLURM_NTASKS", ""}}),
               "SLURM_NTASKS is not set although SLURM_PROCID is");
  expect_error(with(kSrun, {{"SLURM_LOCALID", "9"}}), "SLURM_LOCALID: 9 is not below SLURM_NTASKS");
  expect_error(with(kSrun, {{"SLURM_JOB_ID", ""}}), "SLURM_JOB_ID is not set");
  expect_error(with(kTorchrun, {{"WORLD_SIZE", "4x"}}), "WORLD_SIZE: '4x'");
  expect_error(with(kTorchrun, {{"RANK", ""}}), "RANK is not set although TORCHELASTIC_RUN_ID is");
  expect_error(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}),
               "OMPI_COMM_WORLD_RANK: rank 2 does not exist");
  expect_error(with(kMpich, {{"PMI_SIZE", "1"}}),
               "PMI_RANK: rank 1 does not exist, as PMI_SIZE is 1");
}

TEST(LaunchEnvironment, NoncesAreFileNames) {
  const auto nonce = read(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "../a b:c"}}))->nonce;
  EXPECT_EQ(nonce.find_first_of("/ :"), std::string::npos) << nonce;
  EXPECT_EQ(rendezvous_folder("runs/x", {.nonce = "n1"}),
            std::filesystem::path("runs/x/.rendezvous/n1"));
}

TEST(LaunchEnvironment, RanksOnSeveralMachinesListenOnAReachableAddress) {
  const auto nodes =
      with(kSrun, {{"SLURM_NNODES", "2"}, {"SLURMD_NODENAME", "no-such-node.invalid"}});
  const auto host = read(nodes)->host;
  EXPECT_EQ(host, listen_host(std::nullopt, std::nullopt));
  EXPECT_EQ(host.find_first_not_of("0123456789.:abcdef"), std::string::npos) << host;
  EXPECT_EQ(read(with(nodes, {{"GRPO_HOST", "10.1.2.3"}}))->host, "10.1.2.3");
  // A meeting point on this machine gives a loopback route, which is passed over.
  EXPECT_EQ(listen_host(std::nullopt, "127.0.0.1"), host);
}

}  // namespace
}  // namespace grpo::app
