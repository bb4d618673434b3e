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
#include "comm/tcp/frame.h"
#include "comm/tcp/socket.h"

namespace braid {

/// A connection from each process of a run to each other one.
class SocketMesh {
 public:
  using Receive = std::function<void(int from, Frame frame)>;

  /// Made together with the other processes, within `timeout_ns`. `receive` gets what comes, by a
  /// thread per process; if it throws, the run is aborted. Throws DeviceError, AbortedError.
  SocketMesh(ProcessGroup& processes, int64_t timeout_ns, Receive receive);
  /// Waits until `receive` has returned everywhere.
  ~SocketMesh();
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  /// Returns when the system has taken it. Frames of several threads do not mix. Throws
  /// AbortedError if the run is aborted meanwhile; says nothing if the other process has ended,
  /// which the process group will notice.
  void send(int to, uint8_t type, std::string_view body, std::span<const std::byte> rest = {});

 private:
  struct Peer {
    Socket socket;
    std::mutex send_mutex;
    std::thread receiver;
  };

  void connect_all(int64_t timeout_ns);
  void accept_all(const Socket& listener, const std::string& token, int64_t timeout_ns);
  void serve(int from);

  ProcessGroup& processes_;
  Receive receive_;
  std::atomic<bool> ends_{false};
  std::vector<std::unique_ptr<Peer>> peers_;  // by process; that of this one is unused
};

}  // namespace braid
