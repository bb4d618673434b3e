#include "comm/tcp/connect.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{50};

/// How long an attempt may take, and what ends it sooner.
struct Patience {
  Clock::time_point deadline;
  const std::function<void()>& give_up;

  bool is_over() const {
    if (give_up) {
      give_up();
    }
    return Clock::now() >= deadline;
  }
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

/// The system's resolver has timeouts of its own, so it runs in a thread that is left behind.
struct Lookup {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  Addresses found;
  std::string reason = "its name is not resolved";
};

void look_up(const Endpoint& to, Lookup& lookup) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status =
      ::getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found);
  const std::scoped_lock lock(lookup.mutex);
  lookup.is_done = true;
  lookup.found = Addresses(status == 0 ? found : nullptr);
  lookup.reason = status == 0 ? "" : ::gai_strerror(status);
  lookup.changed.notify_all();
}

/// Null, with the reason, if the name cannot be resolved (now).
Addresses addresses_of(const Endpoint& to, const Patience& patience, std::string& reason) {
  const auto lookup = std::make_shared<Lookup>();
  std::thread([to, lookup] { look_up(to, *lookup); }).detach();
  std::unique_lock lock(lookup->mutex);
  while (!lookup->changed.wait_for(lock, kLook, [&] { return lookup->is_done; }) &&
         !patience.is_over()) {
  }
  reason = lookup->reason;
  return std::move(lookup->found);
}

/// Whether the connection that has begun was accepted. Sets errno if not.
bool finish_connecting(const Socket& socket, const Patience& patience) {
  while (!can_send(socket, kLook)) {
    if (patience.is_over()) {
      errno = ETIMEDOUT;
      return false;
    }
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error == 0;
}

Socket try_address(const addrinfo& address, const Patience& patience, std::string& reason) {
  Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                         address.ai_protocol));
  if (socket.valid() &&
      (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0 || errno == EINPROGRESS) &&
      finish_connecting(socket, patience)) {
    send_without_delay(socket);
    return socket;
  }
  reason = std::strerror(errno);
  return {};
}

/// One attempt: connects to the first address that accepts. Each gets an equal part of the time.
Socket try_to_connect(const Endpoint& to, const Patience& patience, std::string& reason) {
  const Addresses list = addresses_of(to, patience, reason);
  int num_left = 0;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    ++num_left;
  }
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next, --num_left) {
    const Clock::time_point now = Clock::now();
    const Patience part{now + (patience.deadline - now) / num_left, patience.give_up};
    Socket socket = try_address(*one, part, reason);
    if (socket.valid()) {
      return socket;
    }
  }
  return {};
}

}  // namespace

Socket connect_to(const Endpoint& to, Clock::time_point deadline,
                  const std::function<void()>& give_up) {
  const Patience patience{deadline, give_up};
  std::string reason;
  while (true) {
    Socket socket = try_to_connect(to, patience, reason);
    if (socket.valid()) {
      return socket;
    }
    if (patience.is_over()) {
      throw_device_error("cannot connect to {}, port {}: {}", to.host, to.port, reason);
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

}  // namespace braid
