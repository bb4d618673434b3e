#include "comm/tcp/socket_mesh.h"

#include <poll.h>

#include <chrono>
#include <future>
#include <optional>
#include <utility>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "comm/transport.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kMagic = "braid mesh 2";
constexpr size_t kMaxFrameBytes = (size_t{1} << 32) - 1;
constexpr size_t kMostStrangers = 64;  // with connections that have not said hello
constexpr std::chrono::milliseconds kLook{50};

void throw_if_aborted(const ProcessGroup& processes) {
  if (const std::optional<std::string> reason = processes.aborted()) {
    throw AbortedError(*reason);
  }
}

/// Whether `caller` is a process with a higher index than this one.
bool is_expected(const ProcessGroup& processes, int caller) {
  return caller > processes.index() && caller < processes.size();
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

/// Connects to the processes with lower indices, and meanwhile accepts those with higher ones.
void SocketMesh::connect_all(int64_t timeout_ns) {
  Socket listener = listen_for(processes_.host(), 0);
  const Addresses all = exchange_addresses(listener);
  Arrivals door(
      std::move(listener),
      {.key = all.key, .most_unknown = static_cast<size_t>(processes_.size()) + kMostStrangers});
  std::atomic<bool> stop{false};
  std::future<void> accepted =
      std::async(std::launch::async, [&] { accept_all(std::move(door), stop, timeout_ns); });
  try {
    const std::string hello = ByteWriter().number(static_cast<int32_t>(processes_.index())).take();
    for (int i = 0; i < processes_.index(); ++i) {
      Entry entry =
          enter({.address = all.of[static_cast<size_t>(i)], .key = all.key, .hello = hello},
                Clock::now() + std::chrono::nanoseconds(timeout_ns),
                [&] { throw_if_aborted(processes_); });
      Peer& peer = *peers_[static_cast<size_t>(i)];
      peer.socket = std::move(entry.socket);
      peer.in = std::move(entry.in);
    }
  } catch (...) {
    stop = true;
    throw;
  }
  accepted.get();
  processes_.barrier("connections of the transport");
}

/// The secret of the connections is that of the run, and of this mesh among those of the run.
SocketMesh::Addresses SocketMesh::exchange_addresses(const Socket& listener) {
  const std::vector<std::string> all = processes_.all_gather(
      "addresses of the transport", ByteWriter()
                                        .text(processes_.host())
                                        .number(static_cast<int32_t>(port_of(listener)))
                                        .text(new_secret())
                                        .take());
  Addresses addresses;
  std::string name;  // of this mesh: what process 0 sent
  for (const std::string& one : all) {
    ByteReader body(one);
    const std::string host = body.text();
    addresses.of.push_back({.host = host, .port = body.number<int32_t>()});
    name = name.empty() ? body.text() : name;
  }
  addresses.key = {.magic = std::string(kMagic), .secret = processes_.secret_for("mesh " + name)};
  return addresses;
}

/// Returns when all are there, or `stop` is set. The listener ends with it.
void SocketMesh::accept_all(Arrivals door, const std::atomic<bool>& stop, int64_t timeout_ns) {
  const Clock::time_point deadline = Clock::now() + std::chrono::nanoseconds(timeout_ns);
  int missing = processes_.size() - 1 - processes_.index();
  while (missing > 0 && !stop) {
    throw_if_aborted(processes_);
    if (Clock::now() > deadline) {
      throw_device_error("rank {} waited {:.3g} s for connections of {} ranks", processes_.index(),
                         static_cast<double>(timeout_ns) * 1e-9, missing);
    }
    std::vector<pollfd> polled;
    door.add_to(polled);
    ::poll(polled.data(), polled.size(), static_cast<int>(kLook.count()));
    for (Arrival& arrival : door.look()) {
      missing -= take(std::move(arrival), door.key()) ? 1 : 0;
    }
  }
}

/// Whether it is a process that was missing.
bool SocketMesh::take(Arrival arrival, const HandshakeKey& key) {
  const int from = ByteReader(arrival.handshake.hello()).number<int32_t>();
  if (!is_expected(processes_, from)) {
    return false;
  }
  // A process that did not get its welcome in time comes again.
  Peer& peer = *peers_[static_cast<size_t>(from)];
  const bool is_new = !peer.socket.valid();
  std::string welcome = arrival.handshake.welcome(key, {});
  if (!send_some(arrival.socket, welcome) || !welcome.empty()) {
    return false;
  }
  peer.socket = std::move(arrival.socket);
  peer.in = std::move(arrival.in);
  return is_new;
}

/// Runs until the connection ends; the process group reports why it ended.
void SocketMesh::serve(int from) {
  const Socket& socket = peers_[static_cast<size_t>(from)]->socket;
  FrameBuffer& in = peers_[static_cast<size_t>(from)]->in;
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
