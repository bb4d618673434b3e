#include "comm/tcp/rendezvous_server.h"

#include <poll.h>

#include <atomic>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "base/text.h"
#include "comm/tcp/arrivals.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/rendezvous_board.h"
#include "comm/tcp/rendezvous_protocol.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostStrangers = 64;  // with connections that have not said hello
constexpr std::chrono::seconds kFarewellPatience{2};
constexpr int kLookMs = 20;

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

struct Connection {
  Socket socket;
  FrameBuffer in = {};
  int process = 0;
  std::string name = {};
  Clock::time_point heard = Clock::now();
};

}  // namespace

struct RendezvousServer::State {
  RendezvousServerOptions options;
  Arrivals door;
  RendezvousBoard board;
  std::list<Connection> connections;
  Clock::time_point begin = Clock::now();
  Clock::time_point last_look = begin;
  std::atomic<bool> ends{false};
  std::thread thread;

  State(Socket listener, RendezvousServerOptions given)
      : options(std::move(given)),
        door(std::move(listener),
             {.key = {.magic = std::string(kRendezvousMagic), .secret = options.secret},
              .most_unknown = static_cast<size_t>(options.num_processes) + kMostStrangers}),
        board(options.num_processes) {}

  void serve();
  void wait_for_events();
  void look_at_clock();
  void greet(Arrival arrival);
  std::string read_hello(std::string_view hello, Connection& from) const;
  void receive(Connection& from);
  void send(Connection& to);
  void lose(const Connection& connection);
};

/// Runs until all processes have disconnected, after the owner wants to end.
void RendezvousServer::State::serve() {
  std::optional<Clock::time_point> end;
  while (true) {
    wait_for_events();
    for (Arrival& arrival : door.look()) {
      greet(std::move(arrival));
    }
    for (Connection& connection : connections) {
      receive(connection);
    }
    look_at_clock();
    for (Connection& connection : connections) {
      send(connection);
    }
    connections.remove_if([&](const Connection& one) { return board.has_left(one.process); });
    if (ends && !end) {
      end = Clock::now() + kFarewellPatience;
    }
    if (end && (connections.empty() || Clock::now() > *end)) {
      return;
    }
  }
}

void RendezvousServer::State::wait_for_events() {
  std::vector<pollfd> polled;
  door.add_to(polled);
  for (const Connection& connection : connections) {
    const int events = POLLIN | (board.out(connection.process).empty() ? 0 : POLLOUT);
    polled.push_back({connection.socket.fd(), static_cast<int16_t>(events), 0});
  }
  ::poll(polled.data(), polled.size(), kLookMs);
}

/// Finds processes that are silent for too long or have not connected in time. If this thread
/// itself was stopped meanwhile, it cannot tell which were silent.
void RendezvousServer::State::look_at_clock() {
  const Clock::time_point now = Clock::now();
  const auto silence = std::chrono::nanoseconds(options.silence_ns);
  const bool was_stopped = now - last_look > silence / 2;
  last_look = now;
  for (Connection& connection : connections) {
    if (was_stopped) {
      connection.heard = now;
    }
    if (now - connection.heard > silence) {
      board.abort(fmt::format("rank {} ({}) has not answered for {:.3g} s", connection.process,
                              connection.name, seconds(options.silence_ns)));
    }
  }
  const std::optional<int> missing = board.missing();
  if (missing && now - begin > std::chrono::nanoseconds(options.arrival_ns)) {
    board.abort(
        fmt::format("rank {} has not come within {:.3g} s", *missing, seconds(options.arrival_ns)));
  }
}

/// Lets a process in, if it is one that is missing.
void RendezvousServer::State::greet(Arrival arrival) {
  Connection from{.socket = std::move(arrival.socket), .in = std::move(arrival.in)};
  std::string refused = "its hello is of another version of braid";
  try {
    refused = read_hello(arrival.handshake.hello(), from);
  } catch (const DeviceError&) {  // cut short
  }
  if (!refused.empty()) {
    std::string bytes = pack_frame(static_cast<uint8_t>(HandshakeMessage::kRefused), refused);
    send_some(from.socket, bytes);
    return;
  }
  board.come(from.process, arrival.handshake.welcome(door.key(), options.name));
  connections.push_back(std::move(from));
  if (!board.missing()) {
    door.close();
  }
}

/// Sets who it is. Returns why it is refused, empty if it is not.
std::string RendezvousServer::State::read_hello(std::string_view hello, Connection& from) const {
  ByteReader body(hello);
  const std::string run = body.text();
  const std::string build = body.text();
  const auto num_processes = body.number<int32_t>();
  from.process = body.number<int32_t>();
  from.name = printable(body.text(), kShownNameBytes);
  if (run != options.run) {
    return fmt::format("run {} is there, not {}", quote(options.run, kShownNameBytes),
                       quote(run, kShownNameBytes));
  }
  if (build != options.build) {
    return fmt::format(
        "rank {} ({}) runs build {} of braid, and rank 0 ({}) build {}; start the same file on all "
        "hosts",
        from.process, from.name, printable(build, kShownNameBytes), options.name, options.build);
  }
  if (num_processes != options.num_processes) {
    return fmt::format("rank {} counts {} ranks, and rank 0 {}", from.process, num_processes,
                       options.num_processes);
  }
  if (from.process < 0 || from.process >= num_processes) {
    return fmt::format("there is no rank {} of {}", from.process, num_processes);
  }
  return board.has_come(from.process) ? fmt::format("rank {} is there already", from.process) : "";
}

/// Reads once, so that a process that sends a lot does not hold up others.
void RendezvousServer::State::receive(Connection& from) {
  const ReadResult result = read_some(from.socket, from.in.bytes(), std::chrono::milliseconds(0));
  if (result == ReadResult::kEnded) {
    return lose(from);
  }
  if (result == ReadResult::kBytes) {
    from.heard = Clock::now();
  }
  try {
    std::optional<Frame> frame;
    while (!board.has_left(from.process) && (frame = from.in.next(kMaxMessageBytes))) {
      board.take(from.process, *frame);
    }
  } catch (const DeviceError& error) {
    board.abort(fmt::format("rank {} ({}): {}", from.process, from.name, error.what()));
    board.leave(from.process);
  }
}

void RendezvousServer::State::send(Connection& to) {
  std::string& bytes = board.out(to.process);
  if (!bytes.empty() && !send_some(to.socket, bytes)) {
    lose(to);
  }
}

/// The other side closed the connection.
void RendezvousServer::State::lose(const Connection& connection) {
  if (!board.has_left(connection.process)) {
    board.leave(connection.process);
    board.abort(fmt::format("rank {} ({}) has ended", connection.process, connection.name));
  }
}

RendezvousServer::RendezvousServer(Socket listener, RendezvousServerOptions options)
    : state_(std::make_unique<State>(std::move(listener), std::move(options))) {
  state_->thread = std::thread([this] { state_->serve(); });
}

RendezvousServer::~RendezvousServer() {
  state_->ends = true;
  state_->thread.join();
}

}  // namespace braid
