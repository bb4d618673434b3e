#include "comm/tcp/socket_mesh.h"

#include <chrono>
#include <optional>
#include <random>
#include <utility>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "comm/transport.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint8_t kHello = 1;
constexpr std::string_view kMagic = "braid mesh 1";
constexpr size_t kMaxHelloBytes = 256;
constexpr size_t kMaxFrameBytes = (size_t{1} << 32) - 1;
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::seconds kHelloPatience{5};

void throw_if_aborted(const ProcessGroup& processes) {
  if (const std::optional<std::string> reason = processes.aborted()) {
    throw AbortedError(*reason);
  }
}

std::string new_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// The first frame of a connection; nullopt if it is not from a process of this run.
std::optional<std::string> read_hello(const Socket& socket, FrameBuffer& in) {
  const Clock::time_point deadline = Clock::now() + kHelloPatience;
  try {
    while (Clock::now() < deadline) {
      if (const std::optional<Frame> frame = in.next(kMaxHelloBytes)) {
        return frame->type == kHello ? std::optional(frame->body) : std::nullopt;
      }
      if (read_some(socket, in.bytes(), kLook) == ReadResult::kEnded) {
        return std::nullopt;
      }
    }
  } catch (const DeviceError&) {  // invalid bytes from another program
  }
  return std::nullopt;
}

/// The process that sent the hello, if it is one of the `count` processes from `first` on.
std::optional<int> caller_of(const std::string& hello, const std::string& token, int first,
                             int count) {
  if (!hello.starts_with(kMagic)) {
    return std::nullopt;
  }
  try {
    ByteReader body(std::string_view(hello).substr(kMagic.size()));
    const bool ours = body.text() == token;
    const auto from = body.number<int32_t>();
    return ours && from >= first && from < count ? std::optional<int>(from) : std::nullopt;
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

}  // namespace

SocketMesh::SocketMesh(ProcessGroup& processes, int64_t timeout_ns, Receive receive)
    : processes_(processes), receive_(std::move(receive)) {
  for (int i = 0; i < processes.size(); ++i) {
    peers_.push_back(std::make_unique<Peer>());
  }
  connect_all(timeout_ns);
  for (int i = 0; i < processes.size(); ++i) {
    if (i != processes.index()) {
      peers_[static_cast<size_t>(i)]->receiver = std::thread([this, i] { serve(i); });
    }
  }
}

SocketMesh::~SocketMesh() {
  ends_ = true;
  for (const auto& peer : peers_) {
    if (peer->receiver.joinable()) {
      peer->socket.shutdown();
      peer->receiver.join();
    }
  }
}

/// Connects to the processes with lower indices, and accepts those with higher ones.
void SocketMesh::connect_all(int64_t timeout_ns) {
  const bool is_local = processes_.host() == "127.0.0.1";
  const Socket listener = is_local ? listen_on_loopback(0) : listen_everywhere(0);
  const std::vector<std::string> all = processes_.all_gather(
      "addresses of the transport", ByteWriter()
                                        .text(processes_.host())
                                        .number(static_cast<int32_t>(port_of(listener)))
                                        .text(new_token())
                                        .take());
  std::string token;
  for (int i = 0; i < processes_.size(); ++i) {
    ByteReader body(all[static_cast<size_t>(i)]);
    const std::string host = body.text();
    const auto port = body.number<int32_t>();
    token = i == 0 ? body.text() : token;
    if (i < processes_.index()) {
      Socket& socket = peers_[static_cast<size_t>(i)]->socket;
      socket = connect_to({host, port}, Clock::now() + std::chrono::nanoseconds(timeout_ns),
                          [&] { throw_if_aborted(processes_); });
      const std::string hello =
          ByteWriter().text(token).number(static_cast<int32_t>(processes_.index())).take();
      send_all(socket, pack_frame(kHello, std::string(kMagic) + hello));
    }
  }
  accept_all(listener, token, timeout_ns);
}

void SocketMesh::accept_all(const Socket& listener, const std::string& token, int64_t timeout_ns) {
  const Clock::time_point deadline = Clock::now() + std::chrono::nanoseconds(timeout_ns);
  int missing = processes_.size() - 1 - processes_.index();
  while (missing > 0) {
    throw_if_aborted(processes_);
    if (Clock::now() > deadline) {
      throw_device_error("rank {} waited {:.3g} s for connections of {} ranks", processes_.index(),
                         static_cast<double>(timeout_ns) * 1e-9, missing);
    }
    std::optional<Socket> socket = accept_from(listener);
    if (!socket) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    FrameBuffer in;  // contains only the hello: the rest is sent when all are connected
    const std::optional<std::string> hello = read_hello(*socket, in);
    const std::optional<int> from =
        hello ? caller_of(*hello, token, processes_.index() + 1, processes_.size()) : std::nullopt;
    if (from && !peers_[static_cast<size_t>(*from)]->socket.valid()) {
      peers_[static_cast<size_t>(*from)]->socket = *std::move(socket);
      --missing;
    }
  }
  processes_.barrier("connections of the transport");
}

/// Runs until the connection ends; the process group reports why it ended.
void SocketMesh::serve(int from) {
  const Socket& socket = peers_[static_cast<size_t>(from)]->socket;
  FrameBuffer in;
  try {
    while (!ends_ && read_some(socket, in.bytes(), kLook) != ReadResult::kEnded) {
      while (std::optional<Frame> frame = in.next(kMaxFrameBytes)) {
        receive_(from, *std::move(frame));
      }
    }
  } catch (const std::exception& error) {
    processes_.abort(
        fmt::format("rank {}, from rank {}: {}", processes_.index(), from, error.what()));
  }
}

void SocketMesh::send(int to, uint8_t type, std::string_view body,
                      std::span<const std::byte> rest) {
  Peer& peer = *peers_[static_cast<size_t>(to)];
  const auto give_up = [&] { throw_if_aborted(processes_); };
  const std::scoped_lock lock(peer.send_mutex);
  std::string head = frame_header(type, body.size() + rest.size());
  head += body;
  static_cast<void>(send_all(peer.socket, head, give_up) && send_all(peer.socket, rest, give_up));
}

}  // namespace braid
