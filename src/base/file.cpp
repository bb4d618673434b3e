#include "base/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/file_operation.h"

namespace braid {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
// Slow storage and frozen storage look different only if no single call takes long: limits of what
// one call writes, and of what one fsync has to.
constexpr size_t kMostBytesAtOnce = size_t{16} << 20;
constexpr int64_t kMostUnsyncedBytes = int64_t{256} << 20;

[[noreturn]] void throw_file_error(std::string_view verb, const std::string& path,
                                   std::string_view call, int error_number) {
  throw_data_error("cannot {} '{}': {}: {}", verb, path, call,
                   std::generic_category().message(error_number));
}

/// Owns a file descriptor until the end of a scope.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  ~ScopedFd() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Lets this process open as many files as its hard limit allows. False if it does already.
bool raise_limit_of_files() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) {
    return false;
  }
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  while (true) {
    const int fd = ::open(path, flags | O_CLOEXEC, mode);
    const int error_number = errno;
    const bool again =
        fd < 0 && (error_number == EINTR || (error_number == EMFILE && raise_limit_of_files()));
    if (!again) {
      errno = error_number;
      return fd;
    }
  }
}

struct stat status_of(int fd, const std::string& path) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) {
    throw_file_error("read", path, "fstat", errno);
  }
  return status;
}

std::string_view verb_of(int flags) {
  return (flags & O_ACCMODE) == O_RDONLY ? "read" : "write";
}

[[noreturn]] void refuse_irregular(std::string_view verb, const std::string& path, bool is_folder) {
  throw_data_error("cannot {} '{}': it is {}, not a regular file", verb, path,
                   is_folder ? "a folder" : "a device or a pipe");
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

struct TemporaryFile {
  std::string path;
  int fd;
};

/// Beside `path`, so that the rename stays inside one file system. The name is unique among running
/// processes by the process id and, inside one, by O_EXCL and the counter; a stale file of a killed
/// process is stepped over.
TemporaryFile create_temporary_beside(const std::string& path) {
  constexpr int kMaxTries = 1000;
  for (int attempt = 0; attempt < kMaxTries; ++attempt) {
    std::string name = fmt::format("{}.{}-{}.tmp", path, ::getpid(), attempt);
    const int fd = open_retrying(name.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd >= 0) {
      return {std::move(name), fd};
    }
    if (errno != EEXIST) {
      throw_file_error("write", path, "open of a temporary file beside it", errno);
    }
  }
  throw_data_error("cannot write '{}': {} stale temporary files '{}.*.tmp' are in the way", path,
                   kMaxTries, path);
}

}  // namespace

int open_regular_file(const std::string& path, int flags) {
  const FileOperation opening("open of", path);
  // O_NONBLOCK changes nothing for regular files; O_NOCTTY: a terminal must not become ours.
  const int fd = open_retrying(path.c_str(), flags | O_NONBLOCK | O_NOCTTY, 0666);
  if (fd < 0 && (errno == ENXIO || errno == EISDIR)) {  // a pipe without a reader, a socket
    refuse_irregular(verb_of(flags), path, errno == EISDIR);
  }
  if (fd < 0 && errno == EEXIST && (flags & O_EXCL) != 0) {
    return -1;
  }
  if (fd < 0) {
    throw_file_error(verb_of(flags), path, "open", errno);
  }
  struct stat status = {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    refuse_irregular(verb_of(flags), path, S_ISDIR(status.st_mode));
  }
  return fd;
}

PieceFile::PieceFile(std::string path)
    : path_(std::move(path)), fd_(open_regular_file(path_, O_RDONLY)) {
  struct stat status = {};
  if (::fstat(fd_, &status) != 0) {
    ::close(fd_);  // the destructor of an object that was never made does not run
    throw_file_error("read", path_, "fstat", errno);
  }
  size_bytes_ = status.st_size;
}

PieceFile::~PieceFile() {
  ::close(fd_);
}

void PieceFile::read_at(int64_t offset_bytes, std::span<std::byte> out) const {
  while (!out.empty()) {
    const FileOperation reading("read of", path_);
    const size_t most = std::min(out.size(), kMostBytesAtOnce);
    const ssize_t got = ::pread(fd_, out.data(), most, offset_bytes);
    if (got == 0) {
      throw_data_error(
          "'{}' has become shorter while it was in use: it ends at or before byte {}, but had {} "
          "bytes when it was opened",
          path_, offset_bytes, size_bytes_);
    }
    if (got < 0 && errno != EINTR) {
      throw_file_error("read", path_, "pread", errno);
    }
    if (got > 0) {
      out = out.subspan(static_cast<size_t>(got));
      offset_bytes += got;
    }
  }
}

PlacedFile::PlacedFile(std::string path, Mode mode) : path_(std::move(path)) {
  fd_ = open_regular_file(path_, mode == Mode::kCreate ? O_WRONLY | O_CREAT | O_EXCL : O_WRONLY);
  if (fd_ < 0) {
    throw_data_error("cannot write '{}': it exists; remove it, or choose another name", path_);
  }
}

PlacedFile::~PlacedFile() {
  ::close(fd_);
}

void PlacedFile::write_at(int64_t offset_bytes, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const FileOperation writing("write of", path_);
    const ssize_t written =
        ::pwrite(fd_, bytes.data(), std::min(bytes.size(), kMostBytesAtOnce), offset_bytes);
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset_bytes += written;
    } else if (errno != EINTR) {
      throw_file_error("write", path_, "pwrite", errno);
    }
  }
}

SequentialReader::SequentialReader(const PieceFile& file, int64_t begin_bytes, int64_t end_bytes)
    : file_(file), at_bytes_(begin_bytes), end_bytes_(end_bytes) {}

void SequentialReader::fill() {
  const int64_t count = std::min(kPartBytes, end_bytes_ - at_bytes_);
  buffer_.resize(static_cast<size_t>(count));
  file_.read_at(at_bytes_, buffer_);
  at_bytes_ += count;
  ready_ = buffer_;
}

std::span<const std::byte> SequentialReader::next() {
  if (ready_.empty()) {
    fill();
  }
  return std::exchange(ready_, {});
}

void SequentialReader::read(std::span<std::byte> out) {
  const auto left = static_cast<int64_t>(ready_.size()) + end_bytes_ - at_bytes_;
  check(static_cast<int64_t>(out.size()) <= left, "{} bytes of '{}' are asked for, but {} are left",
        out.size(), file_.path(), left);
  while (!out.empty()) {
    if (ready_.empty() && out.size() >= static_cast<size_t>(kPartBytes)) {
      file_.read_at(at_bytes_, out);
      at_bytes_ += static_cast<int64_t>(out.size());
      return;
    }
    if (ready_.empty()) {
      fill();
    }
    const size_t count = std::min(out.size(), ready_.size());
    std::copy_n(ready_.begin(), count, out.begin());
    ready_ = ready_.subspan(count);
    out = out.subspan(count);
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  if (path_.empty() || path_.back() == '/') {
    throw_data_error("cannot write '{}': it is not the name of a file", path_);
  }
  buffer_.reserve(kBufferBytes);
  const FileOperation creating("creation of", path_);
  TemporaryFile temporary = create_temporary_beside(path_);
  temporary_path_ = std::move(temporary.path);
  fd_ = temporary.fd;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, {})),
      buffer_(std::move(other.buffer_)),
      size_bytes_(other.size_bytes_),
      unsynced_bytes_(other.unsynced_bytes_),
      fd_(std::exchange(other.fd_, -1)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    const FileOperation closing("close of", path_);  // may send what was written to a server
    ::close(fd_);
  }
  if (!temporary_path_.empty()) {
    const FileOperation removing("removal of", temporary_path_);
    ::unlink(temporary_path_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  check(fd_ >= 0, "write to '{}' after its commit", path_);
  size_bytes_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    flush();
  }
  if (bytes.size() >= kBufferBytes) {
    write_through(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const FileOperation writing("write of", path_);
    const ssize_t written = ::write(fd_, bytes.data(), std::min(bytes.size(), kMostBytesAtOnce));
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
      unsynced_bytes_ += written;
    } else if (errno != EINTR) {
      throw_file_error("write", path_, "write", errno);
    }
  }
  if (unsynced_bytes_ > kMostUnsyncedBytes) {
    sync_data();
  }
}

void AtomicFile::sync_data() {
  const FileOperation syncing("fsync of", path_);
  if (::fdatasync(fd_) != 0) {
    throw_file_error("write", path_, "fdatasync", errno);
  }
  unsynced_bytes_ = 0;
}

void AtomicFile::sync() {
  check(fd_ >= 0, "sync of '{}' after its commit", path_);
  flush();
  const FileOperation syncing("fsync of", path_);
  if (::fsync(fd_) != 0) {
    throw_file_error("write", path_, "fsync", errno);
  }
}

void AtomicFile::commit() {
  sync();
  {
    const FileOperation closing("close of", path_);
    if (::close(std::exchange(fd_, -1)) != 0) {
      throw_file_error("write", path_, "close", errno);
    }
  }
  const FileOperation renaming("rename of", path_);
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    throw_file_error("write", path_, "rename", errno);
  }
  temporary_path_.clear();
  sync_directory(folder_of(path_));
}

std::string read_text_file(const std::string& path, int64_t max_bytes) {
  const ScopedFd fd(open_regular_file(path, O_RDONLY));
  const struct stat status = status_of(fd.get(), path);
  if (status.st_size > max_bytes) {
    throw_data_error("cannot read '{}': it has {} bytes, but the limit is {}", path, status.st_size,
                     max_bytes);
  }
  std::string text;
  size_t used = 0;
  // One byte more than the known size, so that the end of file is seen without growing again.
  text.resize(static_cast<size_t>(status.st_size) + 1);
  while (true) {
    const FileOperation reading("read of", path);
    const ssize_t got =
        ::read(fd.get(), text.data() + used, std::min(text.size() - used, kMostBytesAtOnce));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw_file_error("read", path, "read", errno);
    }
    if (got == 0) {
      break;
    }
    used += static_cast<size_t>(got);
    if (static_cast<int64_t>(used) > max_bytes) {
      throw_data_error("cannot read '{}': it has more than {} bytes, the limit", path, max_bytes);
    }
    if (used == text.size()) {
      text.resize(text.size() * 2);
    }
  }
  text.resize(used);
  return text;
}

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text)));
}

void sync_directory(const std::string& path) {
  const FileOperation syncing("fsync of", path);
  const ScopedFd fd(open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY));
  if (fd.get() < 0) {
    throw_file_error("write", path, "open", errno);
  }
  // EINVAL: a file system that cannot sync folders; its renames are as durable as they get.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) {
    throw_file_error("write", path, "fsync", errno);
  }
}

}  // namespace braid
