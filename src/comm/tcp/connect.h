#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "comm/tcp/socket.h"

namespace braid {

struct Endpoint {
  std::string host;
  int port = 0;
};

/// Between attempts to connect.
inline constexpr std::chrono::milliseconds kRetryPause{100};

/// Connects; retries until `deadline` while no process listens at the address. Then throws
/// DeviceError with the system's reason, also if the address does not answer or its name cannot be
/// resolved. Calls `give_up` about every 50 ms; it may throw.
Socket connect_to(const Endpoint& to, std::chrono::steady_clock::time_point deadline,
                  const std::function<void()>& give_up = {});

}  // namespace braid
