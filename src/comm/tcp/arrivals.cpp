#include "comm/tcp/arrivals.h"

#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

// At once, so that a flood leaves time to read the hellos of those that came before.
constexpr int kMostAccepted = 16;

enum class Hello : uint8_t { kNotYet, kRight, kNone };

void refuse(const Socket& socket, std::string_view reason) {
  std::string bytes = pack_frame(static_cast<uint8_t>(HandshakeMessage::kRefused), reason);
  send_some(socket, bytes);
}

/// Reads what has arrived. Throws DeviceError for bytes of a stranger.
Hello read_hello(const HandshakeKey& key, Arrival& from) {
  const ReadResult result = read_some(from.socket, from.in.bytes(), std::chrono::milliseconds(0));
  const std::optional<Frame> frame = from.in.next(kMaxHelloBytes);
  if (!frame) {
    return result == ReadResult::kEnded ? Hello::kNone : Hello::kNotYet;
  }
  if (from.handshake.take_hello(key, *frame) == AcceptedHandshake::Answer::kRight) {
    return Hello::kRight;
  }
  refuse(from.socket, "another run is there: it has another secret; give all processes the same");
  return Hello::kNone;
}

}  // namespace

Arrivals::Arrivals(Socket listener, ArrivalsOptions options)
    : listener_(std::move(listener)), options_(std::move(options)) {}

void Arrivals::add_to(std::vector<pollfd>& polled) const {
  polled.push_back({listener_.fd(), POLLIN, 0});  // poll ignores negative descriptors
  for (const Unknown& one : unknown_) {
    polled.push_back({one.arrival.socket.fd(), POLLIN, 0});
  }
}

void Arrivals::begin(Socket socket) {
  if (unknown_.size() >= options_.most_unknown) {
    unknown_.pop_front();
  }
  Unknown one{.arrival = {.socket = std::move(socket), .in = {}, .handshake = {}},
              .begin = Clock::now()};
  std::string challenge = one.arrival.handshake.challenge(options_.key);
  // A new connection has room for it. Who does not take it gets no answer.
  if (send_some(one.arrival.socket, challenge) && challenge.empty()) {
    unknown_.push_back(std::move(one));
  }
}

void Arrivals::accept_some() {
  for (int i = 0; i < kMostAccepted && is_open(); ++i) {
    std::optional<Socket> socket = accept_from(listener_);
    if (!socket) {
      return;
    }
    begin(*std::move(socket));
  }
}

bool Arrivals::is_over(const Unknown& one) const {
  return Clock::now() - one.begin > options_.patience;
}

std::vector<Arrival> Arrivals::look() {
  std::vector<Arrival> known;
  accept_some();
  for (auto one = unknown_.begin(); one != unknown_.end();) {
    Hello hello = Hello::kNone;
    try {
      hello = read_hello(options_.key, one->arrival);
    } catch (const DeviceError&) {  // bytes of another program
    }
    if (hello == Hello::kRight) {
      known.push_back(std::move(one->arrival));
    }
    one = hello != Hello::kNotYet || is_over(*one) ? unknown_.erase(one) : std::next(one);
  }
  return known;
}

void Arrivals::close() {
  listener_ = Socket();
  unknown_.clear();
}

}  // namespace braid
