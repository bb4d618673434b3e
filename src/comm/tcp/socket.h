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

/// A TCP socket: move-only, closed on destruction. Never raises SIGPIPE; not inherited by programs
/// that this process starts.
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
  /// Ends both directions at once, so that threads that read or write here return.
  void shutdown() const noexcept;

 private:
  int fd_ = -1;
};

struct Endpoint {
  std::string host;
  int port = 0;
};

/// Waits for connections on a port of this host's loopback, or of all its addresses (IPv6 and IPv4,
/// where there is IPv6); port 0: any that is free. Throws DeviceError.
Socket listen_on_loopback(int port);
Socket listen_everywhere(int port);

/// The port of a socket that is bound, and the numeric address of this end of a connection.
int port_of(const Socket& socket);
std::string own_address(const Socket& socket);

/// The connection that waits; none if there is none now.
std::optional<Socket> accept_from(const Socket& listener);

/// Connects, and tries again while nobody listens there, until `deadline`; throws DeviceError then,
/// with the system's reason. `give_up` is asked between tries and may throw.
Socket connect_to(const Endpoint& to, std::chrono::steady_clock::time_point deadline,
                  const std::function<void()>& give_up = {});

/// Sends all bytes. Asks `give_up`, which may throw, about every 50 ms while the other side takes
/// none. False if the connection has ended.
bool send_all(const Socket& socket, std::span<const std::byte> bytes,
              const std::function<void()>& give_up = {});
bool send_all(const Socket& socket, std::string_view bytes,
              const std::function<void()>& give_up = {});

enum class ReadResult : uint8_t { kBytes, kNothingYet, kEnded };
/// Appends what is there, and at most 256 KiB, to `to`; waits up to `patience` for the first byte.
ReadResult read_some(const Socket& socket, std::string& to, std::chrono::milliseconds patience);
/// As `read_some` without patience, but sends: takes off the front of `bytes` what the other side
/// takes now. False if the connection has ended.
bool send_some(const Socket& socket, std::string& bytes);

}  // namespace braid
