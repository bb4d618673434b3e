#pragma once

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace braid {

/// Ends the program if a test hangs: GPUs that wait for each other may do so for ever.
class TimeLimit {
 public:
  explicit TimeLimit(unsigned seconds) : before_(std::signal(SIGALRM, end)) { alarm(seconds); }
  ~TimeLimit() {
    alarm(0);
    std::signal(SIGALRM, before_);
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  static void end(int) {
    constexpr std::string_view kMessage = "a test hangs, time limit\n";
    [[maybe_unused]] const ssize_t written = write(2, kMessage.data(), kMessage.size());
    _exit(3);
  }

  void (*before_)(int);
};

}  // namespace braid
