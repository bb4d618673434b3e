#include "launch/environment/run_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/errors.h"
#include "base/text.h"
#include "comm/tcp/socket.h"

namespace braid {
namespace {

constexpr size_t kLeastBytes = 16;
constexpr size_t kMostBytes = 1024;

/// Closes it on destruction.
class OpenFile {
 public:
  // A FIFO without a writer must not hold up the start: non-blocking.
  explicit OpenFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// As ssh judges a key: nobody else may use the user's file. Of a file that another user (root)
/// provides, only its group.
void check_permissions(const struct stat& status, const std::string& path) {
  const mode_t forbidden = status.st_uid == ::getuid() ? S_IRWXG | S_IRWXO : S_IRWXO;
  if ((status.st_mode & forbidden) != 0) {
    throw_config_error("{} = {}: other users can use it (mode {:04o}); run chmod 600 {}",
                       kSecretFileVariable, quote(path), status.st_mode & 07777, path);
  }
}

std::string read_secret_file(const std::string& path) {
  const OpenFile file(path);
  struct stat status {};
  if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) {
    throw_config_error("{} = {}: {}", kSecretFileVariable, quote(path), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    throw_config_error("{} = {}: must be a regular file", kSecretFileVariable, quote(path));
  }
  check_permissions(status, path);
  std::string bytes(kMostBytes + 1, '\0');
  const ssize_t got = ::read(file.fd(), bytes.data(), bytes.size());
  if (got < 0) {
    throw_config_error("{} = {}: {}", kSecretFileVariable, quote(path), std::strerror(errno));
  }
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

}  // namespace

std::string read_run_secret(const EnvLookup& lookup) {
  const std::string path = lookup(kSecretFileVariable).value_or("");
  const std::string value = lookup(kSecretVariable).value_or("");
  if (path.empty() && value.empty()) {
    return "";
  }
  if (!path.empty() && !value.empty()) {
    throw_config_error("environment variables {} and {} are both set; unset one of them",
                       kSecretFileVariable, kSecretVariable);
  }
  const std::string given = path.empty() ? value : read_secret_file(path);
  const std::string secret(trim(given));
  if (secret.size() < kLeastBytes || secret.size() > kMostBytes) {
    throw_config_error("the secret of {} has {} bytes; it must have {} to {}",
                       path.empty() ? kSecretVariable : kSecretFileVariable, secret.size(),
                       kLeastBytes, kMostBytes);
  }
  return secret;
}

void check_secret(const Launch& launch) {
  if (launch.secret.empty() && !is_loopback(launch.host)) {
    throw_config_error(
        "{}: other hosts can connect to the ranks of this run, because rank 0 is at {}: give them "
        "a secret, the same on all hosts: set {} to a file that only you can read (head -c 32 "
        "/dev/urandom | base64), or {} to the secret",
        launch.launcher, quote(launch.host), kSecretFileVariable, kSecretVariable);
  }
}

}  // namespace braid
