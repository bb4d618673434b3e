#include "launch/environment/find_launch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "base/errors.h"
#include "base/philox.h"
#include "base/text.h"
#include "comm/tcp/socket.h"
#include "launch/environment/run_secret.h"

namespace braid {
namespace {

/// The environment variables of a launcher.
struct Variables {
  std::string_view launcher;
  std::string_view process;
  std::string_view num_processes;
  std::string_view local_process;
  std::string_view num_local;
};

// The first launcher whose first two variables are set counts: mpirun under Slurm sets srun's for
// its own daemons.
constexpr std::array kLaunchers = {
    Variables{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Variables{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Variables{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    Variables{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
};

constexpr int64_t kMaxProcesses = 1 << 20;
constexpr int kFirstJobPort = 20000;
constexpr int kNumJobPorts = 10000;

class Environment {
 public:
  explicit Environment(const EnvLookup& lookup) : lookup_(lookup) {}

  std::string text(std::string_view name) const {
    return name.empty() ? "" : lookup_(name).value_or("");
  }
  bool has(std::string_view name) const { return !text(name).empty(); }

  /// Throws ConfigError unless it is a number in [least, most].
  int number(std::string_view name, int64_t least, int64_t most) const {
    const std::string value = text(name);
    int64_t result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || result < least ||
        result > most) {
      throw_config_error("environment variable {} = {}: must be an integer from {} to {}", name,
                         quote(value, 60), least, most);
    }
    return static_cast<int>(result);
  }

  std::string first_of(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (has(name)) {
        return text(name);
      }
    }
    return "";
  }

 private:
  const EnvLookup& lookup_;
};

/// Whether these variables define the position of a process. srun --mpi=pmi2 sets two PMI variables
/// in addition to its own, but not the index on the host.
bool give_place(const Environment& environment, const Variables& names) {
  return environment.has(names.process) && environment.has(names.num_processes) &&
         (names.process != "PMI_RANK" || environment.has(names.local_process) ||
          !environment.has("SLURM_STEP_NUM_TASKS"));
}

/// An identifier that the processes of one job share, and other jobs do not have. If the launcher
/// provides one, srun's step is not part of it: mpirun's daemons form a step on all hosts except
/// its own.
std::string job_of(const Environment& environment) {
  const std::string named =
      environment.first_of({"TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  if (!named.empty()) {
    return named;
  }
  const std::string job = environment.first_of({"SLURM_JOB_ID", "SLURM_JOBID"});
  const std::string step = environment.first_of({"SLURM_STEP_ID", "SLURM_STEPID"});
  return step.empty() ? job : fmt::format("{}.{}", job, step);
}

/// Whether the launcher says that all processes are on this host.
bool is_one_host(const Environment& environment, const Variables& names, const Launch& launch) {
  if (launch.launcher == "srun") {
    return environment.text("SLURM_STEP_NUM_NODES") == "1";
  }
  return environment.has(names.num_local) &&
         environment.number(names.num_local, 1, kMaxProcesses) == launch.num_processes;
}

/// On one host, no other host need reach rank 0.
void set_address(const Environment& environment, const Variables& names, Launch& launch) {
  if (is_one_host(environment, names, launch)) {
    launch.host = "127.0.0.1";
    return;
  }
  launch.host = environment.text("MASTER_ADDR");
  if (launch.host.empty() && launch.launcher == "srun") {
    launch.host = first_host(
        environment.first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}));
  }
  if (launch.host.empty()) {
    throw_config_error(
        "{} started {} processes, but no environment variable says where rank 0 is; set "
        "MASTER_ADDR to its host (for example mpirun -x MASTER_ADDR=node1 ...)",
        launch.launcher, launch.num_processes);
  }
}

/// torchrun's agent often listens at MASTER_PORT itself: then we use the next port.
void set_port(const Environment& environment, Launch& launch) {
  if (!environment.has("MASTER_PORT")) {
    const uint64_t hash = stable_hash(launch.job.data(), launch.job.size());
    launch.port = kFirstJobPort + static_cast<int>(hash % kNumJobPorts);
    return;
  }
  launch.port = environment.number("MASTER_PORT", 1, 65535);
  if (launch.launcher == "torchrun" && environment.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    launch.port += launch.port < 65535 ? 1 : -1;
  }
}

/// "pid secret listener", which `braid train` passes to the processes that it starts.
void set_parent(const std::string& words, Launch& launch) {
  const std::vector<std::string> parts = split_text(words, ' ');
  const auto number = [&](const std::string& text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      // It may contain a secret.
      throw_config_error("environment variable {}: only `braid train` may set it",
                         kBraidLaunchVariable);
    }
    return value;
  };
  if (parts.size() != 3) {
    number("");
  }
  launch.launcher = "braid";
  launch.launcher_pid = number(parts[0]);
  launch.secret = parts[1];
  launch.listener = launch.process == 0 ? number(parts[2]) : -1;
}

Launch launch_of(const Environment& environment, const Variables& names) {
  Launch launch;
  launch.launcher = names.launcher;
  launch.num_processes = environment.number(names.num_processes, 1, kMaxProcesses);
  launch.process = environment.number(names.process, 0, launch.num_processes - 1);
  if (environment.has(names.local_process)) {
    launch.local_process = environment.number(names.local_process, 0, launch.num_processes - 1);
  } else if (launch.num_processes > 1) {
    throw_config_error(
        "environment variables {} and {} are set, but {} is not; set it to the number of the "
        "process on its host",
        names.process, names.num_processes, names.local_process);
  }
  return launch;
}

}  // namespace

std::string first_host(const std::string& list) {
  const size_t end = list.find_first_of(",[");
  std::string host = list.substr(0, end);
  if (end != std::string::npos && list[end] == '[') {
    const size_t stop = list.find_first_of("-,]", end + 1);
    host += list.substr(end + 1, stop - end - 1);
    const size_t close = list.find(']', end);
    const size_t next = close == std::string::npos ? close : list.find(',', close);
    host += close == std::string::npos ? "" : list.substr(close + 1, next - close - 1);
  }
  return host;
}

std::optional<Launch> find_launch(const EnvLookup& lookup) {
  const Environment environment(lookup);
  const auto names = std::ranges::find_if(
      kLaunchers, [&](const Variables& one) { return give_place(environment, one); });
  if (names == kLaunchers.end()) {
    return std::nullopt;
  }
  Launch launch = launch_of(environment, *names);
  if (launch.num_processes == 1) {
    return std::nullopt;
  }
  launch.job = job_of(environment);
  if (environment.has(kBraidLaunchVariable)) {
    set_parent(environment.text(kBraidLaunchVariable), launch);
  } else {
    launch.secret = read_run_secret(lookup);
  }
  set_address(environment, *names, launch);
  set_port(environment, launch);
  return launch;
}

std::string describe_launch(const std::optional<Launch>& launch) {
  if (!launch) {
    return "none: `braid train` starts the processes of its ranks itself, on this host";
  }
  const bool lacks_secret = launch->secret.empty() && !is_loopback(launch->host);
  return fmt::format("{}: rank {} of {}, rank 0 at {}, port {}{}", launch->launcher,
                     launch->process, launch->num_processes, launch->host, launch->port,
                     lacks_secret ? fmt::format("; no secret: set {}", kSecretFileVariable) : "");
}

}  // namespace braid
