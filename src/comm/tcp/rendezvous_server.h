#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/tcp/socket.h"

namespace braid {

struct RendezvousServerOptions {
  int num_processes = 1;
  std::string run;         ///< a process of another run is refused
  std::string secret;      ///< of the run; a process that does not know it is refused
  std::string build;       ///< of braid; a process of another build is refused
  std::string name;        ///< of this process, shown to the others: "host:pid"
  int64_t silence_ns = 0;  ///< a process that sends nothing for this long has failed
  int64_t arrival_ns = 0;  ///< time in which all processes must connect
};

/// The server of the processes of a run, in a thread of process 0. It stores the values that they
/// put, answers their requests, and tells all of them when one has failed: it said so, its
/// connection ended without a goodbye, or it is silent. A connection that does not begin like a
/// process of this run is dropped and changes nothing (Arrivals). Once all processes are there, it
/// no longer listens.
class RendezvousServer {
 public:
  RendezvousServer(Socket listener, RendezvousServerOptions options);
  /// Waits until all processes have disconnected, but at most 2 s.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
