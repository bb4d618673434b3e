#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace braid {

/// A TCP socket: move-only, closed on destruction. Never raises SIGPIPE; child processes do not
/// inherit it.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  /// Shuts down both directions at once, so that threads that read or write here return.
  void shutdown() const noexcept;

 private:
  int fd_ = -1;
};

/// Disables Nagle's algorithm, so that small messages are sent at once.
void send_without_delay(const Socket& socket);

/// Whether that name or address is this host's loopback, which no other host can reach.
bool is_loopback(std::string_view host);

/// Listens where a process that is told `host` finds it: on loopback, or on all addresses.
Socket listen_for(std::string_view host, int port);
/// Listens on a port of this host's loopback, or on all its addresses (IPv6 and IPv4, if there is
/// IPv6); port 0: any free port. Throws DeviceError.
Socket listen_on_loopback(int port);
Socket listen_everywhere(int port);

/// The port of a bound socket, and the numeric local address of a connection.
int port_of(const Socket& socket);
std::string own_address(const Socket& socket);

/// Accepts a pending connection; nullopt if there is none.
std::optional<Socket> accept_from(const Socket& listener);

/// Waits until the socket accepts bytes, has connected or has failed; false after `patience`.
bool can_send(const Socket& socket, std::chrono::milliseconds patience);

/// Sends all bytes. While the other side accepts none, calls `give_up`, which may throw, about
/// every 50 ms. False if the connection has ended.
bool send_all(const Socket& socket, std::span<const std::byte> bytes,
              const std::function<void()>& give_up = {});
bool send_all(const Socket& socket, std::string_view bytes,
              const std::function<void()>& give_up = {});

enum class ReadResult : uint8_t { kBytes, kNothingYet, kEnded };
/// Appends the available bytes, at most 256 KiB, to `to`; waits up to `patience` for the first
/// byte.
ReadResult read_some(const Socket& socket, std::string& to, std::chrono::milliseconds patience);
/// Sends without waiting: removes from the front of `bytes` what was sent. False if the connection
/// has ended.
bool send_some(const Socket& socket, std::string& bytes);

}  // namespace braid
