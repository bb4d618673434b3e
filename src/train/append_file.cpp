#include "train/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/file_operation.h"

namespace braid {
namespace {

[[noreturn]] void throw_write_error(const std::string& path, std::string_view call,
                                    int error_number) {
  throw_data_error("cannot write '{}': {}: {}", path, call,
                   std::generic_category().message(error_number));
}

}  // namespace

AppendFile::AppendFile(std::string path, Existing existing) : path_(std::move(path)) {
  const int exclusive = existing == Existing::kRefuse ? O_EXCL : 0;
  fd_ = open_regular_file(path_, O_WRONLY | O_APPEND | O_CREAT | exclusive);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

AppendFile::~AppendFile() {
  if (fd_ >= 0) {
    const FileOperation closing("close of", path_);
    ::close(fd_);
  }
}

void AppendFile::append(std::string_view bytes) {
  check(is_open(), "append to '{}', which is not open", path_);
  while (!bytes.empty()) {
    const FileOperation writing("write of", path_);
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      throw_write_error(path_, "write", errno);
    }
  }
}

void AppendFile::sync() {
  check(is_open(), "sync of '{}', which is not open", path_);
  const FileOperation syncing("fsync of", path_);
  if (::fsync(fd_) != 0) {
    throw_write_error(path_, "fsync", errno);
  }
}

}  // namespace braid
