#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/file_operation.h"
#include "base/text.h"

namespace braid {
namespace {

/// The owner's text; the owner may not have written it yet.
std::string owner_in(int fd) {
  std::array<char, 32> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  const std::string_view owner =
      trim(std::string_view(text.data(), size > 0 ? static_cast<size_t>(size) : 0));
  const bool is_number = !owner.empty() && owner.find_first_not_of("0123456789") == owner.npos;
  return is_number ? fmt::format("process {}", owner) : "another process";
}

void write_owner(int fd) {
  const std::string owner = fmt::format("{}\n", ::getpid());
  // For people only: the lock is valid even if this cannot be written.
  if (::ftruncate(fd, 0) == 0) {
    static_cast<void>(::pwrite(fd, owner.data(), owner.size(), 0) < 0);
  }
}

bool is_link(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_symlink(path, ignored);
}

}  // namespace

FolderLock::FolderLock(std::string_view option, const std::string& folder) {
  const std::string path = folder + "/.lock";
  const FileOperation locking("lock of", path);
  try {
    fd_ = open_regular_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  } catch (const DataError& error) {
    throw_data_error(
        "{} = {}: {}{}", option, quote(folder), error.what(),
        is_link(path) ? "; it is a symbolic link, which may lead anywhere: remove it" : "");
  }
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    write_owner(fd_);
  } else if (errno == EWOULDBLOCK) {
    const std::string owner = owner_in(fd_);
    ::close(fd_);
    throw_config_error(
        "{} = {}: {} writes to it (it holds the file '.lock' there); wait for its end, or name "
        "another folder",
        option, quote(folder), owner);
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool is_folder_locked(const std::string& folder) {
  const int fd =
      ::open((folder + "/.lock").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return false;
  }
  const bool is_locked = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return is_locked;
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

}  // namespace braid
