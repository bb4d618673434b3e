#pragma once

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>

namespace braid {

struct ChildOptions {
  std::string folder;                       ///< working directory
  std::vector<std::string> environment;     ///< NAME=value, over the one of this process
  std::optional<int64_t> max_file_bytes;    ///< RLIMIT_FSIZE: stands in for a full disk
  std::optional<int64_t> max_memory_bytes;  ///< RLIMIT_AS
  std::string stdout_path;                  ///< instead of being captured, for example /dev/full
  bool close_stdout = false;                ///< start without a file number 1
  bool as_nobody = false;                   ///< give up root's rights, if this process has them
};

struct ChildResult {
  int exit_code = -1;  ///< -1 if a signal ended it
  int signal = 0;
  bool timed_out = false;
  std::string out;
  std::string err;
};

/// A program started without a shell, with its output captured. Killed, if it still runs, at the
/// end of the scope.
class ChildProcess {
 public:
  ChildProcess(const std::vector<std::string>& command, const ChildOptions& options) {
    std::vector<char*> arguments;
    for (const std::string& word : command) {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
    arguments.push_back(nullptr);
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("pipe2 failed");
    }
    pid_ = ::fork();
    if (pid_ < 0) {
      throw std::runtime_error("fork failed");
    }
    if (pid_ == 0) {
      enter(options, out[1], err[1]);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    pipes_ = {out[0], err[0]};
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (pid_ > 0) {
      send(SIGKILL);
      int status = 0;
      ::waitpid(pid_, &status, 0);
    }
    close_pipe(0);
    close_pipe(1);
  }

  void send(int signal) const { ::kill(pid_, signal); }

  /// Closes the reading end of standard output, as `| head` does.
  void stop_reading() { close_pipe(0); }

  pid_t pid() const { return pid_; }

  /// Reads until `is_enough` (given the standard output so far) or the end of the program's
  /// output; false in the latter case and after `limit`.
  bool read_until(const std::function<bool(const std::string&)>& is_enough,
                  std::chrono::seconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!is_enough(result_.out)) {
      if (!read_some(end)) {
        return false;
      }
    }
    return true;
  }

  /// Waits for the end. A program that takes longer than `limit` is killed.
  ChildResult wait(std::chrono::seconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (read_some(end)) {
    }
    if (std::chrono::steady_clock::now() >= end) {
      result_.timed_out = true;
      send(SIGKILL);
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return result_;
  }

 private:
  /// In the child, between fork and exec. This program has one thread, so nothing is locked.
  static void enter(const ChildOptions& options, int out, int err) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) {
      ::signal(number, SIG_DFL);
    }
    if (!options.stdout_path.empty()) {
      out = ::open(options.stdout_path.c_str(), O_WRONLY);
    }
    ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    if (options.close_stdout) {
      ::close(STDOUT_FILENO);
    }
    set_limit(RLIMIT_FSIZE, options.max_file_bytes);
    set_limit(RLIMIT_AS, options.max_memory_bytes);
    constexpr int kNobody = 65534;
    const bool entered = ::chdir(options.folder.c_str()) == 0;
    const bool changed = !options.as_nobody || ::geteuid() != 0 ||
                         (::setresgid(kNobody, kNobody, kNobody) == 0 &&
                          ::setresuid(kNobody, kNobody, kNobody) == 0);
    if (!entered || !changed) {
      ::_exit(126);
    }
    for (const std::string& setting : options.environment) {
      ::putenv(const_cast<char*>(setting.c_str()));
    }
  }

  static void set_limit(decltype(RLIMIT_AS) resource, const std::optional<int64_t>& bytes) {
    if (bytes) {
      const rlimit limit{static_cast<rlim_t>(*bytes), static_cast<rlim_t>(*bytes)};
      ::setrlimit(resource, &limit);
    }
  }

  /// Waits for output of either kind; false once both are at their end, or after `end`.
  bool read_some(std::chrono::steady_clock::time_point end) {
    using std::chrono::milliseconds;
    std::array<pollfd, 2> polled{{{pipes_[0], POLLIN, 0}, {pipes_[1], POLLIN, 0}}};
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    if ((pipes_[0] < 0 && pipes_[1] < 0) || left.count() <= 0) {
      return false;
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(left.count()));
    for (size_t i = 0; i < polled.size(); ++i) {
      if (pipes_[i] >= 0 && polled[i].revents != 0) {
        std::array<char, 65536> bytes{};
        const ssize_t got = ::read(pipes_[i], bytes.data(), bytes.size());
        if (got > 0) {
          (i == 0 ? result_.out : result_.err).append(bytes.data(), static_cast<size_t>(got));
        } else {
          close_pipe(i);
        }
      }
    }
    return true;
  }

  void close_pipe(size_t index) {
    if (pipes_[index] >= 0) {
      ::close(std::exchange(pipes_[index], -1));
    }
  }

  pid_t pid_ = -1;
  std::array<int, 2> pipes_{-1, -1};
  ChildResult result_;
};

}  // namespace braid
