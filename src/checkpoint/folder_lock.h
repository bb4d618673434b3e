#pragma once

#include <string>
#include <string_view>

namespace braid {

/// Locks a folder that this process writes to, for the lifetime of this object: an flock on the
/// file `.lock` in it, which contains the process id. The system releases the lock when the process
/// ends for any reason; the file stays. Move-only.
class FolderLock {
 public:
  /// The error names `option` and `folder`. Throws ConfigError that names the other process if one
  /// has the folder locked, DataError if the file cannot be created or is a symbolic link. On a
  /// file system without locks it always succeeds.
  FolderLock(std::string_view option, const std::string& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

/// Whether a process has the folder locked. False if that cannot be known.
bool is_folder_locked(const std::string& folder);

}  // namespace braid
