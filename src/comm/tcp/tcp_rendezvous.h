#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/process_group.h"
#include "comm/tcp/socket.h"

namespace braid {

struct TcpRendezvousOptions {
  int num_processes = 1;
  int process = 0;    ///< of this end; 0 serves
  Endpoint address;   ///< where process 0 can be reached
  Socket listener;    ///< of process 0, if it is there already; else it is made
  std::string token;  ///< equal for the processes of a run, unlike those of another
  int64_t timeout_ns = 60'000'000'000;  ///< for the others to come, and of `get`
  /// A process that is not heard of for so long has failed; each is heard of ten times as often.
  int64_t silence_ns = 10'000'000'000;
};

/// The processes of a run, over TCP: process 0 serves, all others are its clients. A process
/// that ends without `finish`, or is silent, aborts the run: "rank 3 (host:1234) has ended", "rank
/// 3 (host:1234) has not answered for 10 s". Without process 0 each of the others says so itself.
/// Throws DeviceError if process 0 cannot be reached in time, ConfigError if it refuses this one.
std::unique_ptr<ProcessGroup> make_tcp_rendezvous(TcpRendezvousOptions options);

/// "host:1234", of this process.
std::string process_name();

}  // namespace braid
