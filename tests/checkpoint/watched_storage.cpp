#include "checkpoint/watched_storage.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <utility>

#include "base/file_operation.h"

namespace braid {
namespace {

std::atomic<WatchedStorage*> watched{nullptr};

/// The C library's own version.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int fd) {
  std::array<char, 4096> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  return size < 0 ? "" : std::string(target.data(), static_cast<size_t>(size));
}

std::string path_at(int folder, const char* path) {
  return path[0] == '/' || folder == AT_FDCWD ? path : path_of(folder) + "/" + path;
}

uint64_t file_of(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

bool is_folder_of(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
}

const char* name_of(StorageCallKind kind) {
  constexpr std::array kNames = {"open",   "create", "read",   "write", "fsync", "fsync", "close",
                                 "rename", "rename", "unlink", "mkdir", "rmdir", "mark"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

/// What the functions of the C library's names below do.
class StorageCalls {
 public:
  /// Calls `real` and records it, or fails in its place. `call` is made before, because the call
  /// may change what it needs.
  template <class Real>
  static int64_t run(StorageCall call, const Real& real) {
    WatchedStorage* const storage = watched;
    if (storage == nullptr || !storage->watches(call.path)) {
      return real();
    }
    if (const int error = error_of(storage->next_fault(call.kind, call.path), call.kind)) {
      errno = error;
      return -1;
    }
    const int64_t result = real();
    if (result >= 0) {
      if (call.kind == StorageCallKind::kWrite) {
        call.bytes.resize(static_cast<size_t>(result));
      }
      storage->add(std::move(call));
    }
    return result;
  }

  static int64_t run_open(int folder, const char* name, int flags, mode_t mode) {
    static auto* const real = next<int(int, const char*, int, ...)>("openat");
    WatchedStorage* const storage = watched;
    const std::string path = path_at(folder, name);
    const bool creates = (flags & O_CREAT) != 0 && ::access(path.c_str(), F_OK) != 0;
    if (storage == nullptr || !storage->watches(path)) {
      return real(folder, name, flags, mode);
    }
    const auto kind = creates ? StorageCallKind::kCreate : StorageCallKind::kOpen;
    if (const int error = error_of(storage->next_fault(kind, path), kind)) {
      errno = error;
      return -1;
    }
    const int fd = real(folder, name, flags, mode);
    if (fd >= 0) {
      storage->add({.kind = kind, .path = path, .file = file_of(fd)});
      const std::lock_guard lock(storage->mutex_);
      storage->is_written_[fd] = (flags & O_ACCMODE) != O_RDONLY;
    }
    return fd;
  }

  static size_t shortened(int fd, size_t size) {
    WatchedStorage* const storage = watched;
    if (storage == nullptr) {
      return size;
    }
    const std::lock_guard lock(storage->mutex_);
    const bool is_cut =
        storage->fault_ == StorageFault::kInterrupted && storage->is_written_.contains(fd);
    return is_cut ? (size + 1) / 2 : size;
  }

  static bool is_written(int fd) {
    WatchedStorage* const storage = watched;
    if (storage == nullptr) {
      return false;
    }
    const std::lock_guard lock(storage->mutex_);
    const auto found = storage->is_written_.find(fd);
    if (found == storage->is_written_.end()) {
      return false;
    }
    const bool result = found->second;
    storage->is_written_.erase(found);
    return result;
  }

 private:
  static int error_of(StorageFault fault, StorageCallKind kind) {
    const bool may_be_interrupted =
        kind == StorageCallKind::kOpen || kind == StorageCallKind::kCreate ||
        kind == StorageCallKind::kRead || kind == StorageCallKind::kWrite;
    switch (fault) {
      case StorageFault::kNone:
        return 0;
      case StorageFault::kInputOutputError:
        return EIO;
      case StorageFault::kNoSpace:
        return ENOSPC;
      case StorageFault::kInterrupted:
        return may_be_interrupted ? EINTR : 0;
    }
    return 0;
  }
};

WatchedStorage::WatchedStorage(std::string folder) : folder_(std::move(folder)) {
  watched = this;
}

WatchedStorage::~WatchedStorage() {
  watched = nullptr;
}

void WatchedStorage::fail(int64_t call, StorageFault fault) {
  const std::lock_guard lock(mutex_);
  calls_until_fault_ = call;
  fault_ = fault;
}

std::string WatchedStorage::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

void WatchedStorage::mark(std::string text) {
  add({.kind = StorageCallKind::kMark, .path = std::move(text)});
}

std::vector<StorageCall> WatchedStorage::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

std::vector<std::string> WatchedStorage::unseen() const {
  const std::lock_guard lock(mutex_);
  return unseen_;
}

bool WatchedStorage::watches(std::string_view path) const {
  return path == folder_ || path.starts_with(folder_ + "/");
}

StorageFault WatchedStorage::next_fault(StorageCallKind kind, std::string_view path) {
  const bool is_seen = longest_file_operation().has_value();
  const std::string call = std::string(name_of(kind)) + " " + std::string(path);
  const std::lock_guard lock(mutex_);
  if (!is_seen) {
    unseen_.push_back(call);
  }
  if (calls_until_fault_ < 0 || calls_until_fault_-- > 0) {
    return StorageFault::kNone;
  }
  failed_ = call;
  return fault_;
}

void WatchedStorage::add(StorageCall call) {
  const std::lock_guard lock(mutex_);
  log_.push_back(std::move(call));
}

}  // namespace braid

using braid::StorageCall;
using braid::StorageCallKind;
using braid::StorageCalls;

// The C library's functions, for everything in this program: the linker prefers these.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return static_cast<int>(StorageCalls::run_open(AT_FDCWD, path, flags, mode));
}

ssize_t read(int fd, void* data, size_t size) {
  static auto* const real = braid::next<ssize_t(int, void*, size_t)>("read");
  return StorageCalls::run({.kind = StorageCallKind::kRead, .path = braid::path_of(fd)},
                           [&] { return real(fd, data, size); });
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  static auto* const real = braid::next<ssize_t(int, void*, size_t, off_t)>("pread");
  return StorageCalls::run({.kind = StorageCallKind::kRead, .path = braid::path_of(fd)},
                           [&] { return real(fd, data, size, offset); });
}

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const real = braid::next<ssize_t(int, const void*, size_t)>("write");
  size = StorageCalls::shortened(fd, size);
  return StorageCalls::run({.kind = StorageCallKind::kWrite,
                            .path = braid::path_of(fd),
                            .file = braid::file_of(fd),
                            .bytes = std::string(static_cast<const char*>(data), size)},
                           [&] { return real(fd, data, size); });
}

int fsync(int fd) {
  static auto* const real = braid::next<int(int)>("fsync");
  const auto kind = braid::is_folder_of(fd) ? StorageCallKind::kSyncFolder : StorageCallKind::kSync;
  return static_cast<int>(
      StorageCalls::run({.kind = kind, .path = braid::path_of(fd), .file = braid::file_of(fd)},
                        [&] { return real(fd); }));
}

int fdatasync(int fd) {
  static auto* const real = braid::next<int(int)>("fdatasync");
  return static_cast<int>(StorageCalls::run(
      {.kind = StorageCallKind::kSync, .path = braid::path_of(fd), .file = braid::file_of(fd)},
      [&] { return real(fd); }));
}

// An error of close leaves no descriptor open.
int close(int fd) {
  static auto* const real = braid::next<int(int)>("close");
  const std::string path = StorageCalls::is_written(fd) ? braid::path_of(fd) : "";
  bool is_closed = false;
  const int64_t result = StorageCalls::run({.kind = StorageCallKind::kClose, .path = path}, [&] {
    is_closed = true;
    return real(fd);
  });
  if (!is_closed) {
    const int error = errno;
    real(fd);
    errno = error;
  }
  return static_cast<int>(result);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = braid::next<int(const char*, const char*)>("rename");
  return static_cast<int>(StorageCalls::run(
      {.kind = StorageCallKind::kRename, .path = from, .to = to}, [&] { return real(from, to); }));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  static auto* const real =
      braid::next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return static_cast<int>(
      StorageCalls::run({.kind = StorageCallKind::kExchange, .path = from, .to = to},
                        [&] { return real(from_folder, from, to_folder, to, flags); }));
}

int unlink(const char* path) noexcept {
  static auto* const real = braid::next<int(const char*)>("unlink");
  return static_cast<int>(StorageCalls::run({.kind = StorageCallKind::kRemove, .path = path},
                                            [&] { return real(path); }));
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* const real = braid::next<int(int, const char*, int)>("unlinkat");
  const auto kind =
      (flags & AT_REMOVEDIR) != 0 ? StorageCallKind::kRemoveFolder : StorageCallKind::kRemove;
  return static_cast<int>(StorageCalls::run({.kind = kind, .path = braid::path_at(folder, path)},
                                            [&] { return real(folder, path, flags); }));
}

int remove(const char* path) noexcept {
  struct stat status = {};
  if (::lstat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
    return ::rmdir(path);
  }
  return unlink(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = braid::next<int(const char*, mode_t)>("mkdir");
  return static_cast<int>(StorageCalls::run({.kind = StorageCallKind::kMakeFolder, .path = path},
                                            [&] { return real(path, mode); }));
}

int rmdir(const char* path) noexcept {
  static auto* const real = braid::next<int(const char*)>("rmdir");
  return static_cast<int>(StorageCalls::run({.kind = StorageCallKind::kRemoveFolder, .path = path},
                                            [&] { return real(path); }));
}

}  // extern "C"
