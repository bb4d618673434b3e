#include "cli/stop_signals.h"

#include <atomic>
#include <csignal>

namespace braid {
namespace {

// The only variable that a signal handler may touch. Global, because signals are per process.
std::atomic<bool> stop_signal{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

void install_stop_signals() {
  stop_signal = false;
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) {
      struct sigaction action {};
      action.sa_handler = [](int) { stop_signal = true; };
      action.sa_flags = static_cast<int>(SA_RESETHAND);
      sigaction(number, &action, nullptr);
    }
  }
}

bool stop_requested() {
  return stop_signal;
}

}  // namespace braid
