#pragma once

#include <cstdint>
#include <memory>

#include "comm/process_group.h"
#include "comm/transport.h"

namespace braid {

struct SocketTransportOptions {
  ProcessGroup* processes = nullptr;    ///< one rank per process; must outlive the transport
  int64_t timeout_ns = 60'000'000'000;  ///< like InProcessOptions::timeout_ns
};

/// This process's end of the communication of CPU ranks in separate processes. Connects all pairs
/// of processes over TCP; all processes call it together. A call sends the parts of this rank's x
/// that the other ranks need, so sums are bitwise equal to those of ranks in one process. It is
/// meant to be correct without a GPU, not fast: a sum among n ranks sends x to n - 1 others. Ranks
/// fail together, through the process group. Throws DeviceError.
std::unique_ptr<Transport> make_socket_transport(const SocketTransportOptions& options);

}  // namespace braid
