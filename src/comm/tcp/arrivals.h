#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <list>
#include <vector>

#include "comm/tcp/frame.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/socket.h"

namespace braid {

/// A connection whose other side knows the secret of the run.
struct Arrival {
  Socket socket;
  FrameBuffer in;
  AcceptedHandshake handshake;
};

struct ArrivalsOptions {
  HandshakeKey key;
  /// Connections that have not said hello yet. One more ends the oldest of them; a process of the
  /// run then connects again.
  size_t most_unknown = 64;
  std::chrono::milliseconds patience{5000};  ///< from the connection to the whole hello
};

/// The door of a process: accepts connections and reads their hellos, of all at the same time, so
/// that nobody delays others by silence. Strangers are dropped and leave nothing behind. Never
/// waits. Not thread-safe.
class Arrivals {
 public:
  Arrivals(Socket listener, ArrivalsOptions options);

  const HandshakeKey& key() const { return options_.key; }
  bool is_open() const { return listener_.valid(); }
  /// Adds what to poll before the next `look`.
  void add_to(std::vector<pollfd>& polled) const;
  /// Returns connections whose hellos have arrived since the last call.
  std::vector<Arrival> look();
  /// All are there: ends the listener and all connections that are unknown.
  void close();

 private:
  struct Unknown {
    Arrival arrival;
    std::chrono::steady_clock::time_point begin;
  };

  void accept_some();
  void begin(Socket socket);
  bool is_over(const Unknown& one) const;

  Socket listener_;
  ArrivalsOptions options_;
  std::list<Unknown> unknown_;  // the oldest first
};

}  // namespace braid
