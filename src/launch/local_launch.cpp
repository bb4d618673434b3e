#include "launch/local_launch.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include "base/errors.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/socket.h"

// NOLINTNEXTLINE(readability-redundant-declaration): POSIX has it in no header
extern char** environ;

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kLoopback = "127.0.0.1";
constexpr int kLookMs = 50;
constexpr size_t kMaxLineBytes = 16384;  // of a line from a process

struct Child {
  int rank = 0;
  pid_t pid = -1;  // -1: has ended
  Socket errors;   // a pipe; not of rank 0
  std::string said = {};
};

/// The actions of posix_spawn in the child before the program starts.
class SpawnActions {
 public:
  SpawnActions() {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawnattr_init(&attributes_);
    // A separate process group: Ctrl-C reaches only this process, which forwards it once.
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnActions() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;

  /// The child gets `fd` under the number `as`; the same number keeps it open.
  void give(int fd, int as) { ::posix_spawn_file_actions_adddup2(&files_, fd, as); }

  pid_t start(const std::vector<std::string>& arguments,
              const std::vector<std::string>& environment) const {
    pid_t pid = -1;
    const int status = ::posix_spawn(&pid, "/proc/self/exe", &files_, &attributes_,
                                     pointers(arguments).data(), pointers(environment).data());
    if (status != 0) {
      throw_device_error("cannot start a process: {}", std::strerror(status));
    }
    return pid;
  }

 private:
  static std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (const std::string& text : texts) {
      list.push_back(const_cast<char*>(text.c_str()));
    }
    list.push_back(nullptr);
    return list;
  }

  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

/// The arguments of this program.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    words.push_back(word);
  }
  check(!words.empty(), "/proc/self/cmdline is empty");
  return words;
}

/// This process's environment, with the variables for a rank's position added.
std::vector<std::string> environment_of(const std::vector<std::string>& place) {
  std::vector<std::string> environment = place;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& own : place) {
      replaced = replaced || own.starts_with(name);
    }
    if (!replaced) {
      environment.emplace_back(text);
    }
  }
  return environment;
}

/// The processes of one run, from start to end.
class Processes {
 public:
  explicit Processes(const LocalLaunchOptions& options) : options_(options) {
    const Socket listener = listen_on_loopback(0);
    const std::string secret = new_secret();
    for (int rank = 0; rank < options.num_processes; ++rank) {
      children_.push_back(start(rank, listener, secret));
    }
  }
  ~Processes() { kill_all(SIGKILL); }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int wait() {
    bool told_to_stop = false;
    while (num_running() > 0) {
      read_errors(kLookMs);
      collect();
      if (!told_to_stop && options_.stop_requested && options_.stop_requested()) {
        told_to_stop = true;
        kill_all(SIGTERM);
      }
      if (failed_at_ &&
          Clock::now() - *failed_at_ > std::chrono::nanoseconds(options_.patience_ns)) {
        kill_rest();
      }
    }
    read_errors(0);
    for (Child& child : children_) {
      say(child, child.said);
    }
    return status_;
  }

 private:
  Child start(int rank, const Socket& listener, const std::string& secret) const {
    std::array<int, 2> pipe{-1, -1};
    if (rank > 0 && ::pipe2(pipe.data(), O_CLOEXEC) != 0) {
      throw_device_error("cannot make a pipe: {}", std::strerror(errno));
    }
    const Socket write_end(pipe[1]);
    Child child{.rank = rank, .errors = Socket(pipe[0])};
    SpawnActions actions;
    if (rank == 0) {
      actions.give(listener.fd(), listener.fd());
    } else {
      actions.give(write_end.fd(), STDERR_FILENO);
    }
    child.pid = actions.start(
        arguments_,
        environment_of(
            {fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank),
             fmt::format("WORLD_SIZE={}", options_.num_processes),
             fmt::format("LOCAL_WORLD_SIZE={}", options_.num_processes),
             fmt::format("MASTER_ADDR={}", kLoopback),
             fmt::format("MASTER_PORT={}", port_of(listener)),
             fmt::format("{}={} {} {}", kBraidLaunchVariable, ::getpid(), secret, listener.fd())}));
    return child;
  }

  int num_running() const {
    int count = 0;
    for (const Child& child : children_) {
      count += child.pid > 0 ? 1 : 0;
    }
    return count;
  }

  void kill_all(int signal) const {
    for (const Child& child : children_) {
      if (child.pid > 0) {
        ::kill(child.pid, signal);
      }
    }
  }

  /// Kills processes that hang after another one's failure, and stopped ones.
  void kill_rest() {
    for (const Child& child : children_) {
      if (child.pid > 0 && ::kill(child.pid, SIGKILL) == 0) {
        options_.error(
            fmt::format("rank {} (pid {}) did not end by itself: killed", child.rank, child.pid));
      }
    }
    failed_at_ = Clock::now();  // they end soon
  }

  void collect() {
    for (Child& child : children_) {
      int status = 0;
      if (child.pid > 0 && ::waitpid(child.pid, &status, WNOHANG) == child.pid) {
        note_end(child, status);
        child.pid = -1;
      }
    }
  }

  void note_end(const Child& child, int status) {
    // Exit status for a rejected configuration; processes that end because of it may end earlier.
    constexpr int kRefused = 2;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (status_ == 1 && code == kRefused) {
      status_ = code;
    }
    if (code != 0 && status_ == 0) {
      status_ = code;
      failed_at_ = Clock::now();
      if (WIFSIGNALED(status)) {
        options_.error(fmt::format("rank {} (pid {}) was ended by signal {} ({})", child.rank,
                                   child.pid, WTERMSIG(status), strsignal(WTERMSIG(status))));
      }
    }
  }

  void read_errors(int patience_ms) {
    std::vector<pollfd> polled;
    for (const Child& child : children_) {
      polled.push_back({child.errors.fd(), POLLIN, 0});  // poll ignores negative descriptors
    }
    ::poll(polled.data(), polled.size(), patience_ms);
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0) {
        read_errors_of(children_[i]);
      }
    }
  }

  void read_errors_of(Child& child) {
    std::array<char, 4096> bytes{};
    const ssize_t got = ::read(child.errors.fd(), bytes.data(), bytes.size());
    if (got <= 0) {
      child.errors = Socket();
      return;
    }
    child.said.append(bytes.data(), static_cast<size_t>(got));
    for (size_t end = 0; (end = child.said.find('\n')) != std::string::npos;) {
      say(child, child.said.substr(0, end));
      child.said.erase(0, end + 1);
    }
    if (child.said.size() > kMaxLineBytes) {
      say(child, std::exchange(child.said, {}));
    }
  }

  /// Prints equal lines of several ranks once.
  void say(const Child& child, std::string_view line) {
    constexpr std::string_view kOwnPrefix = "braid: ";
    line.remove_prefix(line.starts_with(kOwnPrefix) ? kOwnPrefix.size() : 0);
    if (!line.empty() && said_.emplace(line).second) {
      options_.error(fmt::format("rank {}: {}", child.rank, line));
    }
  }

  const LocalLaunchOptions& options_;
  const std::vector<std::string> arguments_ = own_arguments();
  std::vector<Child> children_;
  std::set<std::string> said_;
  int status_ = 0;
  std::optional<Clock::time_point> failed_at_;
};

}  // namespace

int run_processes(const LocalLaunchOptions& options) {
  return Processes(options).wait();
}

void end_with_parent(const Launch& launch) {
  if (launch.launcher_pid == 0) {
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launch.launcher_pid) {
    throw_device_error("rank {}: the process that started it (pid {}) has ended", launch.process,
                       launch.launcher_pid);
  }
}

}  // namespace braid
