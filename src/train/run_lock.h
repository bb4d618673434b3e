#pragma once

#include <string>
#include <string_view>

namespace braid {

/// Locks a folder that this process writes to, for the lifetime of this object: an flock on the
/// file `.lock` in it, which contains the process id. The system releases the lock when the process
/// ends for any reason; the file stays. Move-only.
class RunLock {
 public:
  /// The error names `option` and `folder`. Throws ConfigError that names the other process if one
  /// has the folder locked, DataError if the file cannot be created. On a file system without locks
  /// it always succeeds.
  RunLock(std::string_view option, const std::string& folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace braid
