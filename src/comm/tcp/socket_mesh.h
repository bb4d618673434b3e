#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/process_group.h"
#include "comm/tcp/arrivals.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/socket.h"

namespace braid {

/// A connection between each pair of processes of a run.
class SocketMesh {
 public:
  using Receive = std::function<void(int from, Frame frame)>;

  /// All processes construct it together, within `timeout_ns`. Each connection has a thread that
  /// passes received frames to `receive`; if that throws, the run is aborted. Throws DeviceError,
  /// AbortedError.
  SocketMesh(ProcessGroup& processes, int64_t timeout_ns, Receive receive);
  /// Waits until `receive` has returned in all threads.
  ~SocketMesh();
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  /// Returns when the system has accepted the data. Frames of several threads do not mix. Throws
  /// AbortedError if the run is aborted meanwhile; ignores that the other process has ended,
  /// because the process group notices it.
  void send(int to, uint8_t type, std::string_view body, std::span<const std::byte> rest = {});

 private:
  struct Peer {
    Socket socket;
    FrameBuffer in;
    std::mutex send_mutex;
    std::thread receiver;
  };

  /// The other processes as they have told it.
  struct Addresses {
    std::vector<Endpoint> of;  // by process
    HandshakeKey key;
  };

  void connect_all(int64_t timeout_ns);
  Addresses exchange_addresses(const Socket& listener);
  void accept_all(Arrivals door, const std::atomic<bool>& stop, int64_t timeout_ns);
  bool take(Arrival arrival, const HandshakeKey& key);
  void serve(int from);

  ProcessGroup& processes_;
  Receive receive_;
  std::atomic<bool> ends_{false};
  std::vector<std::unique_ptr<Peer>> peers_;  // by process; the entry of this process is unused
};

}  // namespace braid
