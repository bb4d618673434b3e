#include "comm/tcp/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

constexpr int kBacklog = 1024;  // all ranks of a large run at once
constexpr int kLookMs = 50;
constexpr size_t kReadBytes = size_t{256} << 10;

template <class Address>
Socket listen_on(int family, const Address& address) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return socket;
  }
  const int yes = 1;
  const int no = 0;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (family == AF_INET6) {
    ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  }
  const bool listens =
      ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(socket.fd(), kBacklog) == 0;
  return listens ? std::move(socket) : Socket();
}

Socket listen_on_ipv4(uint32_t address, int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(address);
  Socket socket = listen_on(AF_INET, to);
  if (!socket.valid()) {
    throw_device_error("cannot listen on port {}: {}", port, std::strerror(errno));
  }
  return socket;
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

bool is_ready(const Socket& socket, int16_t events, int patience_ms) {
  pollfd polled{socket.fd(), events, 0};
  return ::poll(&polled, 1, patience_ms) > 0;
}

/// Bytes sent now; -1 if the connection has ended.
int64_t send_now(const Socket& socket, std::span<const std::byte> bytes) {
  const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent >= 0 ? sent : would_block() ? 0 : -1;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void Socket::shutdown() const noexcept {
  ::shutdown(fd_, SHUT_RDWR);
}

void send_without_delay(const Socket& socket) {
  const int yes = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool is_loopback(std::string_view host) {
  return host == "127.0.0.1" || host == "localhost";
}

Socket listen_for(std::string_view host, int port) {
  return is_loopback(host) ? listen_on_loopback(port) : listen_everywhere(port);
}

Socket listen_on_loopback(int port) {
  return listen_on_ipv4(INADDR_LOOPBACK, port);
}

Socket listen_everywhere(int port) {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<uint16_t>(port));
  any.sin6_addr = in6addr_any;
  Socket socket = listen_on(AF_INET6, any);
  return socket.valid() ? std::move(socket) : listen_on_ipv4(INADDR_ANY, port);
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw_device_error("getsockname: {}", std::strerror(errno));
  }
  // The port has the same offset in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string own_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  const bool known =
      ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(), text.size(),
                    nullptr, 0, NI_NUMERICHOST) == 0;
  if (!known) {
    throw_device_error("the address of a connection is not known: {}", std::strerror(errno));
  }
  return text.data();
}

std::optional<Socket> accept_from(const Socket& listener) {
  if (!is_ready(listener, POLLIN, 0)) {
    return std::nullopt;
  }
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    return std::nullopt;
  }
  send_without_delay(socket);
  return socket;
}

bool can_send(const Socket& socket, std::chrono::milliseconds patience) {
  return is_ready(socket, POLLOUT, static_cast<int>(patience.count()));
}

bool send_all(const Socket& socket, std::span<const std::byte> bytes,
              const std::function<void()>& give_up) {
  while (!bytes.empty()) {
    const int64_t sent = send_now(socket, bytes);
    if (sent < 0) {
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(sent));
    if (!bytes.empty() && !is_ready(socket, POLLOUT, kLookMs) && give_up) {
      give_up();
    }
  }
  return true;
}

bool send_all(const Socket& socket, std::string_view bytes, const std::function<void()>& give_up) {
  return send_all(socket, std::as_bytes(std::span(bytes)), give_up);
}

ReadResult read_some(const Socket& socket, std::string& to, std::chrono::milliseconds patience) {
  if (!is_ready(socket, POLLIN, static_cast<int>(patience.count()))) {
    return ReadResult::kNothingYet;
  }
  const size_t before = to.size();
  to.resize(before + kReadBytes);
  const ssize_t got = ::recv(socket.fd(), to.data() + before, kReadBytes, MSG_DONTWAIT);
  const bool later = got < 0 && would_block();
  to.resize(before + static_cast<size_t>(got > 0 ? got : 0));
  return got > 0 ? ReadResult::kBytes : later ? ReadResult::kNothingYet : ReadResult::kEnded;
}

bool send_some(const Socket& socket, std::string& bytes) {
  const int64_t sent = send_now(socket, std::as_bytes(std::span(bytes)));
  if (sent > 0) {
    bytes.erase(0, static_cast<size_t>(sent));
  }
  return sent >= 0;
}

}  // namespace braid
