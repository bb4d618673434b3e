#pragma once

#include <string>
#include <string_view>

namespace braid {

/// Keeps other processes out of a folder that this one writes into, as long as this object lives:
/// an flock on the file `.lock` in it, which holds the process id. The system lets go of the lock
/// when the process ends, however it ends; the file stays. Move-only.
class RunLock {
 public:
  /// `option` and `folder` as in the error. Throws ConfigError that names the other process if one
  /// has the folder, DataError if the file cannot be made. A file system that knows no locks lets
  /// everybody in.
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
