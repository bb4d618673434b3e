#include "cli/rank_processes.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/errors.h"
#include "base/failure_note.h"
#include "base/file_operation.h"
#include "cli/app.h"
#include "cli/stop_signals.h"
#include "launch/launch.h"
#include "launch/local_launch.h"

namespace braid {
namespace {

// All ranks end within runtime.timeout_s and 5 s, and a failure is noticed within moments. It is
// longer than what ranks need to say where they were: 2 s for a CPU's running tasks
// (stuck_timeout_ns), 2 s for a GPU to stand still and 2 s to drain it.
constexpr std::chrono::milliseconds kEndPatience{4500};
// Of a process with a frozen file, which has nothing else to say.
constexpr std::chrono::milliseconds kFrozenPatience{500};
constexpr unsigned kPrintPatienceS = 2;

/// Starts a process per rank and waits for them. They print. On one host, a process notices at once
/// that another one has ended, so one that goes on after kEndPatience is stopped.
void start_processes(const RunConfig& config) {
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  constexpr int64_t kStopPatienceS = 5;
  const int status = run_processes({.num_processes = static_cast<int>(config.parallel.ranks),
                                    .stop_requested = stop_requested,
                                    .patience_ns = kStopPatienceS * kNsPerSecond,
                                    .error = print_error});
  if (status != 0) {
    throw EndOfProgram{status};
  }
}

/// Ends this process if it does not end by itself after a failure, because a task, a library call
/// or an operation on a file is stuck.
class Watchdog {
 public:
  Watchdog(const ProcessGroup& processes, std::chrono::seconds timeout)
      : processes_(processes), timeout_(timeout), thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  bool ends_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return ended_; });
  }

  void watch() {
    std::optional<std::string> reason;
    while (!reason && !ends_within(std::chrono::milliseconds(200))) {
      reason = processes_.aborted();
    }
    if (reason && !ends_within(is_frozen() ? kFrozenPatience : kEndPatience)) {
      // If the output is a file on the storage that is frozen, the alarm ends this process.
      std::signal(SIGALRM, SIG_DFL);
      ::alarm(kPrintPatienceS);
      end_after_device_error(fmt::format("{} (this process did not end by itself)",
                                         noted_failure().value_or(*reason)));
    }
  }

  bool is_frozen() const {
    const std::optional<LongestFileOperation> longest = longest_file_operation();
    return longest && longest->duration > timeout_;
  }

  const ProcessGroup& processes_;
  const std::chrono::seconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the rest
};

/// Ends a process other than the first one without a message, because the first one knows its
/// errors. If the first one is gone, prints the reason.
[[noreturn]] void end_silently(const ProcessGroup& processes, const std::string& reason,
                               int exit_code) {
  if (processes.leader_is_lost()) {
    end_after_device_error(reason);
  }
  std::fflush(nullptr);
  std::_Exit(exit_code);  // as end_after_device_error: a task may be stuck
}

/// Works in this process, which is one of these.
void work_as_one_of(const RankProcess& process, const RunConfig& config,
                    const std::function<void(const RankProcess&)>& work) {
  const ProcessGroup& processes = process.processes;
  const Watchdog watchdog(processes, std::chrono::seconds(config.runtime.timeout_s));
  try {
    work(process);
  } catch (const std::exception& error) {
    if (processes.leads()) {
      throw;
    }
    const bool is_users = dynamic_cast<const ConfigError*>(&error) != nullptr;
    end_silently(processes, error.what(), is_users ? 2 : 1);
  }
}

}  // namespace

void run_on_ranks(const RunConfig& config, const std::function<void(const RankProcess&)>& work) {
  if (const std::optional<Launch> launch = find_launch()) {
    end_with_parent(*launch);
    check_launch(*launch, config);
    const std::unique_ptr<ProcessGroup> processes = connect_processes(*launch, config);
    // Open MPI gives its processes a terminal, even if it writes their output elsewhere.
    work_as_one_of({.processes = *processes,
                    .local_process = launch->local_process,
                    .may_have_terminal = launch->launcher != "mpirun"},
                   config, work);
  } else if (wants_processes(config)) {
    start_processes(config);
  } else {
    work_as_one_of({.processes = *make_lone_process()}, config, work);
  }
}

}  // namespace braid
