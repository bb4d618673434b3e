#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "comm/process_group.h"

namespace braid {

/// Aborts the run when an operation of this process on a file (FileOperation) lasts too long:
/// "rank 3 (node1:4242): fsync of '/data/x' has not ended for 60 s". The storage is frozen then,
/// and the thread that waits for it cannot be ended. The other ranks stop waiting for this one; the
/// owner of this process ends it. This is the only limit on such waits: while a rank reads or
/// writes, others wait for it without a timeout of their own (ProcessGroup).
class FileWatchdog {
 public:
  /// `processes` must outlive it.
  FileWatchdog(ProcessGroup& processes, int64_t timeout_ns);
  ~FileWatchdog();
  FileWatchdog(const FileWatchdog&) = delete;
  FileWatchdog& operator=(const FileWatchdog&) = delete;

 private:
  void watch();

  ProcessGroup& processes_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace braid
