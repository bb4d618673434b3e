#include "comm/tcp/rendezvous_server.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <map>
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
#include "comm/tcp/rendezvous_protocol.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
using Message = RendezvousMessage;

constexpr size_t kMostStrangers = 64;  // with connections that have not said hello
constexpr std::chrono::seconds kFarewellPatience{3};
constexpr int kLookMs = 20;

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

struct Connection {
  Socket socket;
  FrameBuffer in = {};
  std::string out = {};
  int process = 0;
  std::string name = {};
  Clock::time_point heard = Clock::now();
  bool gone = false;

  void say(Message type, std::string_view body) {
    out += pack_frame(static_cast<uint8_t>(type), body);
  }
};

/// A request that waits for its reply.
struct Asker {
  Connection* connection = nullptr;
  uint32_t request = 0;

  void answer(std::string_view bytes) const {
    std::string body = ByteWriter().number(request).take();
    body += bytes;
    connection->say(Message::kDone, body);
  }
};

/// The state of one gather.
struct Gathering {
  std::map<int, std::string> given;  // by process
  std::vector<std::pair<int, Asker>> askers;
  bool for_all = false;
};

}  // namespace

struct RendezvousServer::State {
  RendezvousServerOptions options;
  Arrivals door;
  std::list<Connection> connections;
  std::map<std::string, std::string> values;
  std::multimap<std::string, Asker> waiting;  // for a value, by key
  std::map<std::string, Gathering> gatherings;
  std::vector<bool> has_come = std::vector<bool>(static_cast<size_t>(options.num_processes));
  std::optional<std::string> reason;  // of the abort
  Clock::time_point begin = Clock::now();
  Clock::time_point last_look = begin;
  std::atomic<bool> ends{false};
  std::thread thread;

  State(Socket listener, RendezvousServerOptions given)
      : options(std::move(given)),
        door(std::move(listener),
             {.key = {.magic = std::string(kRendezvousMagic), .secret = options.secret},
              .most_unknown = static_cast<size_t>(options.num_processes) + kMostStrangers}) {}

  void serve();
  void wait_for_events();
  void look_at_clock();
  void receive(Connection& from);
  void take(Connection& from, const Frame& frame);
  void greet(Arrival arrival);
  std::string read_hello(std::string_view hello, Connection& from) const;
  void put(Connection& from, const Frame& frame);
  void get(Connection& from, const Frame& frame);
  void gather(Connection& from, const Frame& frame);
  void ask(const Connection& from, const Frame& frame);
  void answer(const Connection& from, const Frame& frame);
  static void finish(const Gathering& all);
  void lose(Connection& connection);
  void drop(Connection& connection);
  void abort(const std::string& why);
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
      if (!connection.gone && !connection.out.empty() &&
          !send_some(connection.socket, connection.out)) {
        lose(connection);
      }
    }
    connections.remove_if([](const Connection& one) { return one.gone; });
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
    const int events = POLLIN | (connection.out.empty() ? 0 : POLLOUT);
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
    const Clock::duration silent = now - connection.heard;
    if (silent > silence) {
      abort(fmt::format("rank {} ({}) has not answered for {:.3g} s", connection.process,
                        connection.name, seconds(options.silence_ns)));
    }
  }
  if (!reason && now - begin > std::chrono::nanoseconds(options.arrival_ns)) {
    for (size_t i = 0; i < has_come.size(); ++i) {
      if (!has_come[i]) {
        abort(fmt::format("rank {} has not come within {:.3g} s", i, seconds(options.arrival_ns)));
      }
    }
  }
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
    for (std::optional<Frame> frame; !from.gone && (frame = from.in.next(kMaxMessageBytes));) {
      take(from, *frame);
    }
  } catch (const DeviceError& error) {
    abort(fmt::format("rank {} ({}): {}", from.process, from.name, error.what()));
    drop(from);
  }
}

void RendezvousServer::State::take(Connection& from, const Frame& frame) {
  switch (static_cast<Message>(frame.type)) {
    case Message::kPut:
      return put(from, frame);
    case Message::kGet:
      return get(from, frame);
    case Message::kGather:
      return gather(from, frame);
    case Message::kAbort:
      return abort(frame.body);
    case Message::kPing:
      return from.say(Message::kPong, {});
    case Message::kGoodbye:
      return drop(from);
    case Message::kAsk:
      return ask(from, frame);
    case Message::kAnswer:
      return answer(from, frame);
    default:
      throw_device_error("a message of unknown type {}", frame.type);
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
    from.out = pack_frame(static_cast<uint8_t>(HandshakeMessage::kRefused), refused);
    send_some(from.socket, from.out);
    return;
  }
  from.out = arrival.handshake.welcome(door.key(), options.name);
  if (reason) {
    from.say(Message::kAborted, *reason);
  }
  has_come[static_cast<size_t>(from.process)] = true;
  connections.push_back(std::move(from));
  if (std::ranges::find(has_come, false) == has_come.end()) {
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
  return has_come[static_cast<size_t>(from.process)]
             ? fmt::format("rank {} is there already", from.process)
             : "";
}

void RendezvousServer::State::put(Connection& from, const Frame& frame) {
  ByteReader body(frame.body);
  const Asker asker{&from, body.number<uint32_t>()};
  const std::string key = body.text();
  const auto [entry, is_new] = values.try_emplace(key, body.text());
  asker.answer(is_new ? "0" : "1");
  if (!is_new) {
    return;
  }
  const auto [first, last] = waiting.equal_range(key);
  for (auto one = first; one != last; ++one) {
    one->second.answer(entry->second);
  }
  waiting.erase(first, last);
}

void RendezvousServer::State::get(Connection& from, const Frame& frame) {
  ByteReader body(frame.body);
  const Asker asker{&from, body.number<uint32_t>()};
  const std::string key = body.text();
  const auto found = values.find(key);
  if (found == values.end()) {
    waiting.emplace(key, asker);
  } else {
    asker.answer(found->second);
  }
}

void RendezvousServer::State::gather(Connection& from, const Frame& frame) {
  ByteReader body(frame.body);
  const Asker asker{&from, body.number<uint32_t>()};
  const std::string name = body.text();
  Gathering& all = gatherings[name];
  all.for_all = body.number<uint8_t>() != 0;
  all.askers.emplace_back(from.process, asker);
  if (!all.given.emplace(from.process, body.text()).second) {
    throw_device_error("is in {} twice at once", name);
  }
  if (all.given.size() == has_come.size()) {
    finish(all);
    gatherings.erase(name);
  }
}

void RendezvousServer::State::finish(const Gathering& all) {
  ByteWriter body;
  body.number(static_cast<uint64_t>(all.given.size()));
  for (const auto& [process, bytes] : all.given) {
    body.text(bytes);
  }
  const std::string everything = body.take();
  const std::string nothing = ByteWriter().number(uint64_t{0}).take();
  for (const auto& [process, asker] : all.askers) {
    asker.answer(all.for_all || process == 0 ? everything : nothing);
  }
}

/// Forwards a question.
void RendezvousServer::State::ask(const Connection& from, const Frame& frame) {
  const std::string body = ByteWriter().number(int32_t{from.process}).take() + frame.body;
  for (Connection& connection : connections) {
    if (!connection.gone && &connection != &from) {
      connection.say(Message::kQuestion, body);
    }
  }
}

/// Forwards an answer. The process that asked may have disconnected.
void RendezvousServer::State::answer(const Connection& from, const Frame& frame) {
  ByteReader body(frame.body);
  const auto asker = body.number<int32_t>();
  const auto request = body.number<uint32_t>();
  std::string answer = ByteWriter().number(request).number(int32_t{from.process}).take();
  answer += body.rest();
  for (Connection& connection : connections) {
    if (!connection.gone && connection.process == asker) {
      connection.say(Message::kAnswered, answer);
    }
  }
}

/// The other side closed the connection.
void RendezvousServer::State::lose(Connection& connection) {
  if (!connection.gone) {
    abort(fmt::format("rank {} ({}) has ended", connection.process, connection.name));
  }
  drop(connection);
}

/// Stops answering the connection.
void RendezvousServer::State::drop(Connection& connection) {
  connection.gone = true;
  std::erase_if(waiting, [&](const auto& entry) { return entry.second.connection == &connection; });
  for (auto& [name, gathering] : gatherings) {
    std::erase_if(gathering.askers,
                  [&](const auto& entry) { return entry.second.connection == &connection; });
  }
}

/// The first reason stays.
void RendezvousServer::State::abort(const std::string& why) {
  if (reason) {
    return;
  }
  reason = why;
  for (Connection& connection : connections) {
    if (!connection.gone) {
      connection.say(Message::kAborted, why);
    }
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
