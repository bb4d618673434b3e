#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

enum class StorageCallKind {
  kOpen,  ///< without O_CREAT
  kCreate,
  kRead,
  kWrite,
  kSync,
  kSyncFolder,
  kClose,  ///< of a file that was open for writing
  kRename,
  kExchange,
  kRemove,
  kMakeFolder,
  kRemoveFolder,
  kMark,  ///< made by the test
};

/// A call of the system on a file or folder, which succeeded.
struct StorageCall {
  StorageCallKind kind = StorageCallKind::kOpen;
  std::string path = {};  ///< the new name of a rename is `to`
  std::string to = {};
  uint64_t file = 0;       ///< the file behind the name, whatever it is renamed to
  std::string bytes = {};  ///< written
};

/// What happens in place of one call.
enum class StorageFault {
  kNone,
  kInputOutputError,  ///< EIO
  kNoSpace,           ///< ENOSPC
  kInterrupted,       ///< EINTR from calls that may be interrupted, and half of a write
};

/// While it lives, sees all calls of this process on files and folders below a folder: this test
/// program has its own `open`, `write`, `fsync`, `rename` and so on, which call those of the C
/// library. One at a time.
class WatchedStorage {
 public:
  explicit WatchedStorage(std::string folder);
  ~WatchedStorage();
  WatchedStorage(const WatchedStorage&) = delete;
  WatchedStorage& operator=(const WatchedStorage&) = delete;

  /// The call with this number, counted from now, has the fault instead of its effect.
  void fail(int64_t call, StorageFault fault);
  /// What the call was that had the fault, "fsync /x/y"; empty if there were not so many.
  std::string failed() const;
  /// Appends a mark to the log.
  void mark(std::string text);
  std::vector<StorageCall> log() const;
  /// Calls that were no FileOperation: if storage froze in one of them, no watchdog would see it.
  std::vector<std::string> unseen() const;

 private:
  friend class StorageCalls;

  bool watches(std::string_view path) const;
  StorageFault next_fault(StorageCallKind kind, std::string_view path);
  void add(StorageCall call);

  const std::string folder_;
  mutable std::mutex mutex_;
  std::vector<StorageCall> log_;
  std::vector<std::string> unseen_;
  std::map<int, bool> is_written_;  // by descriptor that is open
  int64_t calls_until_fault_ = -1;
  StorageFault fault_ = StorageFault::kNone;
  std::string failed_;
};

}  // namespace braid
