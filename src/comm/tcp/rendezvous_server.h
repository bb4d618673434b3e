#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/tcp/socket.h"

namespace braid {

struct RendezvousServerOptions {
  int num_processes = 1;
  std::string token;       ///< of the run: whoever says another one is refused
  std::string name;        ///< of this process, for the others: "host:pid"
  int64_t silence_ns = 0;  ///< a process that says nothing for so long is given up
  int64_t arrival_ns = 0;  ///< so long processes may take to come
};

/// The board of all processes of a run, in a thread of process 0: keeps what they put, gives them
/// what they ask for, and tells all when one has failed: it said so, its connection ended without a
/// goodbye, or it is silent. Whoever connects and does not begin as a process of this run would is
/// dropped and leaves nothing behind.
class RendezvousServer {
 public:
  RendezvousServer(Socket listener, RendezvousServerOptions options);
  /// Waits until all processes have gone, and for 3 s at most.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
