#pragma once

#include <cstdint>
#include <memory>

#include "comm/process_group.h"
#include "comm/transport.h"

namespace braid {

struct SocketTransportOptions {
  ProcessGroup* processes = nullptr;    ///< one rank each; must outlive the transport
  int64_t timeout_ns = 60'000'000'000;  ///< as InProcessOptions::timeout_ns
};

/// This process's end of the communication of CPU ranks that are processes: connects each with each
/// over TCP, together with the others, which do the same. A call sends what the other ranks of it
/// need of this one's x; so sums are those of ranks in one process, bit for bit. Made to be right
/// where there is no GPU, not to be fast: a sum among n ranks sends x to n - 1 others. Ranks fail
/// together, through the process group. Throws DeviceError.
std::unique_ptr<Transport> make_socket_transport(const SocketTransportOptions& options);

}  // namespace braid
