#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/process_group.h"
#include "comm/tcp/connect.h"
#include "comm/tcp/socket.h"

namespace braid {

struct TcpRendezvousOptions {
  int num_processes = 1;
  int process = 0;     ///< index of this process; 0 runs the server
  Endpoint address;    ///< where the others reach process 0
  Socket listener;     ///< for process 0, if it already listens; otherwise it makes one
  std::string run;     ///< equal for the processes of a run, and different from other runs
  std::string build;   ///< of braid in this process; one that differs from rank 0's is refused
  std::string secret;  ///< of the run: who does not know it is no process of the run. May be empty
                       ///< only if `address` is this host's loopback
  int64_t timeout_ns = 60'000'000'000;  ///< for the others to connect, and for `get`
  /// A process that sends nothing for this long has failed; each sends ten times as often.
  int64_t silence_ns = 10'000'000'000;
};

/// The processes of a run, connected over TCP: process 0 runs the server, all are its clients. A
/// process that ends without `finish`, or is silent, aborts the run: "rank 3 (host:1234) has
/// ended", "rank 3 (host:1234) has not answered for 10 s". If process 0 is lost, each other process
/// detects it itself. Throws DeviceError if process 0 cannot be reached in time, ConfigError if it
/// refuses this process.
std::unique_ptr<ProcessGroup> make_tcp_rendezvous(TcpRendezvousOptions options);

/// "host:1234" for this process.
std::string process_name();

}  // namespace braid
