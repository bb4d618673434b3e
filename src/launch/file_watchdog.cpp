#include "launch/file_watchdog.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "base/errors.h"
#include "base/file_operation.h"
#include "comm/tcp/tcp_rendezvous.h"

namespace braid {
namespace {

std::string describe(const ProcessGroup& processes, const LongestFileOperation& operation,
                     std::chrono::nanoseconds timeout) {
  return fmt::format("rank {} ({}): {} has not ended for {:.3g} s (runtime.timeout_s)",
                     processes.index(), process_name(), operation.name,
                     std::chrono::duration<double>(timeout).count());
}

}  // namespace

FileWatchdog::FileWatchdog(ProcessGroup& processes, int64_t timeout_ns)
    : processes_(processes), timeout_(timeout_ns), thread_([this] { watch(); }) {}

FileWatchdog::~FileWatchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FileWatchdog::watch() {
  constexpr std::chrono::nanoseconds kLongestLook = std::chrono::milliseconds(200);
  const std::chrono::nanoseconds look = std::min(kLongestLook, timeout_ / 10);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, look, [this] { return ends_; })) {
    const std::optional<LongestFileOperation> longest = longest_file_operation();
    if (longest && longest->duration > timeout_) {
      lock.unlock();
      return processes_.abort(describe(processes_, *longest, timeout_));
    }
  }
}

}  // namespace braid
