#include "launch/environment/find_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string, std::less<>>;

EnvLookup environment(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

const Variables kTorchrun{{"RANK", "5"},           {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "box1"}, {"MASTER_PORT", "29500"}};
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "2"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"PMIX_NAMESPACE", "prterun-box-7@1"}};
const Variables kSrun{{"SLURM_PROCID", "9"},    {"SLURM_STEP_NUM_TASKS", "16"},
                      {"SLURM_LOCALID", "1"},   {"SLURM_STEP_NODELIST", "node[007-008]"},
                      {"SLURM_JOB_ID", "1234"}, {"SLURM_STEP_ID", "0"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    variables[name] = value;
  }
  return variables;
}

std::string error_of(const Variables& variables) {
  return message_of<ConfigError>([&] { find_launch(environment(variables)); });
}

TEST(FindLaunch, IsNoneWithoutALauncherOrWithOneProcess) {
  EXPECT_EQ(find_launch(environment({})), std::nullopt);
  EXPECT_EQ(find_launch(environment({{"RANK", "0"}})), std::nullopt);
  EXPECT_EQ(find_launch(environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}})), std::nullopt);
  // A batch script of Slurm, and no step of it: srun has started nothing here.
  EXPECT_EQ(find_launch(environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})), std::nullopt);
}

TEST(FindLaunch, TakesTorchrunsPlace) {
  const auto launch = find_launch(environment(kTorchrun));
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launcher, "torchrun");
  EXPECT_EQ(launch->num_processes, 8);
  EXPECT_EQ(launch->process, 5);
  EXPECT_EQ(launch->local_process, 1);
  EXPECT_EQ(launch->host, "box1");
  EXPECT_EQ(launch->port, 29500);
  EXPECT_EQ(describe_launch(launch),
            "torchrun: rank 5 of 8, rank 0 at box1, port 29500; no secret: set BRAID_SECRET_FILE");
  // Its agent has a store of its own at that port.
  EXPECT_EQ(
      find_launch(environment(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})))->port,
      29501);
  const Variables last_port = {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", "65535"}};
  EXPECT_EQ(find_launch(environment(with(kTorchrun, last_port)))->port, 65534);
}

TEST(FindLaunch, TakesMpirunsPlaceOnOneHostOrWithAnAddress) {
  const auto here = find_launch(environment(kMpirun));
  ASSERT_TRUE(here.has_value());
  EXPECT_EQ(here->launcher, "mpirun");
  EXPECT_EQ(here->process, 2);
  EXPECT_EQ(here->local_process, 2);
  EXPECT_EQ(here->host, "127.0.0.1");
  EXPECT_GE(here->port, 20000);
  // All processes of a job come to the same port, and others mostly to another one.
  EXPECT_EQ(find_launch(environment(with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "3"}})))->port,
            here->port);
  EXPECT_NE(find_launch(environment(with(kMpirun, {{"PMIX_NAMESPACE", "prterun-box-8@1"}})))->port,
            here->port);
  const Variables spread = with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(error_of(spread), AllOf(HasSubstr("mpirun started 4 processes"),
                                      HasSubstr("MASTER_ADDR"), HasSubstr("mpirun -x")));
  EXPECT_EQ(find_launch(environment(with(spread, {{"MASTER_ADDR", "box"}})))->host, "box");
  // Under Slurm, mpirun's daemons are a step of srun's.
  const auto under_slurm = find_launch(environment(with(kSrun, kMpirun)));
  EXPECT_EQ(under_slurm->launcher, "mpirun");
  // On the host where mpirun itself runs there is no step, and the run is the same.
  EXPECT_EQ(under_slurm->job, here->job);
  EXPECT_EQ(under_slurm->port, here->port);
}

TEST(FindLaunch, TakesThePlaceOfAPmi) {
  const auto launch = find_launch(environment({{"PMI_RANK", "1"},
                                               {"PMI_SIZE", "2"},
                                               {"MPI_LOCALRANKID", "0"},
                                               {"MPI_LOCALNRANKS", "1"},
                                               {"MASTER_ADDR", "box"}}));
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->process, 1);
  EXPECT_EQ(launch->local_process, 0);
  EXPECT_THAT(error_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}),
              HasSubstr("PMI_RANK and PMI_SIZE are set, but MPI_LOCALRANKID is not"));
}

TEST(FindLaunch, OnlyTheFirstProcessOfBraidTrainListens) {
  const Variables own = with(kTorchrun, {{"BRAID_LAUNCH", "7 own 5"}});
  const auto first = find_launch(environment(with(own, {{"RANK", "0"}})));
  EXPECT_EQ(first->launcher, "braid");
  EXPECT_EQ(first->launcher_pid, 7);
  EXPECT_EQ(first->listener, 5);
  EXPECT_EQ(find_launch(environment(own))->listener, -1);
}

TEST(FindLaunch, WithoutALauncherBraidTrainStartsTheProcesses) {
  EXPECT_THAT(describe_launch(std::nullopt), HasSubstr("`braid train` starts the processes"));
}

TEST(FindLaunch, TakesSrunsPlaceAndItsFirstHost) {
  const auto launch = find_launch(environment(kSrun));
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launcher, "srun");
  EXPECT_EQ(launch->num_processes, 16);
  EXPECT_EQ(launch->process, 9);
  EXPECT_EQ(launch->local_process, 1);
  EXPECT_EQ(launch->host, "node007");
  EXPECT_EQ(launch->job, "1234.0");
  // What srun --mpi=pmi2 sets besides has no number on the host.
  const auto with_pmi = find_launch(
      environment(with(kSrun, {{"PMI_RANK", "9"}, {"PMI_SIZE", "16"}, {"PMI_JOBID", "1234.0"}})));
  ASSERT_TRUE(with_pmi.has_value());
  EXPECT_EQ(with_pmi->launcher, "srun");
  EXPECT_EQ(with_pmi->local_process, 1);
}

TEST(FindLaunch, FindsTheFirstHostOfAList) {
  EXPECT_EQ(first_host("box"), "box");
  EXPECT_EQ(first_host("box,other"), "box");
  EXPECT_EQ(first_host("node[003-005,9],other"), "node003");
  EXPECT_EQ(first_host("node[7,9]"), "node7");
  EXPECT_EQ(first_host("rack1-node[3]"), "rack1-node3");
  EXPECT_EQ(first_host("a[1-2].cluster,b"), "a1.cluster");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("broken["), "broken");
}

TEST(FindLaunch, RefusesPlacesThatContradictThemselves) {
  EXPECT_EQ(error_of(with(kTorchrun, {{"RANK", "8"}})),
            "environment variable RANK = \"8\": must be an integer from 0 to 7");
  EXPECT_EQ(error_of(with(kTorchrun, {{"WORLD_SIZE", "many"}})),
            "environment variable WORLD_SIZE = \"many\": must be an integer from 1 to 1048576");
  for (const char* const rank : {"5x", "-1", "99999999999999999999"}) {
    EXPECT_EQ(
        error_of(with(kTorchrun, {{"RANK", rank}})),
        fmt::format("environment variable RANK = \"{}\": must be an integer from 0 to 7", rank));
  }
  EXPECT_EQ(error_of(with(kTorchrun, {{"MASTER_PORT", "123456"}})),
            "environment variable MASTER_PORT = \"123456\": must be an integer from 1 to 65535");
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", ""}})), HasSubstr("LOCAL_RANK is not"));
  for (const char* const words : {"7 hidden", "7x hidden 5", "pid hidden 5", "7 hidden 5 6"}) {
    EXPECT_EQ(error_of(with(kTorchrun, {{"BRAID_LAUNCH", words}})),
              "environment variable BRAID_LAUNCH: only `braid train` may set it");
  }
}

TEST(FindLaunch, RanksOfOneHostMeetOnItsLoopback) {
  EXPECT_EQ(find_launch(environment(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}})))->host,
            "127.0.0.1");
  EXPECT_EQ(find_launch(environment(with(kSrun, {{"SLURM_STEP_NUM_NODES", "1"}})))->host,
            "127.0.0.1");
  EXPECT_EQ(find_launch(environment(with(kSrun, {{"SLURM_STEP_NUM_NODES", "2"}})))->host,
            "node007");
}

TEST(FindLaunch, NamesOfJobsAreNoSecrets) {
  const auto launch = find_launch(environment(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}})));
  EXPECT_EQ(launch->job, "none");
  EXPECT_EQ(launch->secret, "");
  const std::string secret = "0123456789abcdef";
  const Variables given = with(kSrun, {{"BRAID_SECRET", secret}});
  EXPECT_EQ(find_launch(environment(given))->secret, secret);
  EXPECT_EQ(describe_launch(find_launch(environment(given))).find(secret), std::string::npos);
  // That of `braid train` counts for its own processes.
  EXPECT_EQ(find_launch(environment(with(
                            given, {{"BRAID_LAUNCH", "7 own 5"}, {"MASTER_ADDR", "127.0.0.1"}})))
                ->secret,
            "own");
}

}  // namespace
}  // namespace braid
