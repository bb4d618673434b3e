#include "comm/tcp/handshake.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "base/sha256.h"
#include "base/text.h"
#include "comm/transport.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kNonceBytes = 32;
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::seconds kChallengePatience{5};  // of one attempt
constexpr size_t kShownBytes = 300;                    // of a stranger's text

enum class Side : uint8_t { kConnects, kAccepts };

std::string frame_of(HandshakeMessage type, std::string_view body) {
  return pack_frame(static_cast<uint8_t>(type), body);
}

bool is(const Frame& frame, HandshakeMessage type) {
  return frame.type == static_cast<uint8_t>(type);
}

std::string proof(const HandshakeKey& key, Side side, std::string_view challenge,
                  std::string_view nonce, std::string_view text) {
  return hmac_sha256(
      key.secret,
      ByteWriter().text(key.magic).number(side).text(challenge).text(nonce).text(text).take());
}

/// The fields of a frame that begins with the magic. Throws DeviceError if it does not.
ByteReader fields_of(const HandshakeKey& key, const Frame& frame) {
  if (!frame.body.starts_with(key.magic)) {
    throw_device_error("no process of braid");
  }
  return ByteReader(std::string_view(frame.body).substr(key.magic.size()));
}

/// One attempt to enter.
class Attempt {
 public:
  Attempt(const Door& door, Entry& entry, Clock::time_point deadline,
          const std::function<void()>& give_up)
      : door_(door), entry_(entry), deadline_(deadline), give_up_(give_up) {}

  /// False if the connection ended before, or took too long. Who has sent a challenge is likely to
  /// be right, so it gets all the time that there is.
  bool run() {
    std::optional<Frame> frame = next(std::min(deadline_, Clock::now() + kChallengePatience));
    if (!frame || !is(*frame, HandshakeMessage::kChallenge)) {
      return refuse_if_told(frame);
    }
    const std::string challenge = fields_of(door_.key, *frame).text();
    const std::string nonce = random_bytes(kNonceBytes);
    const std::string own = proof(door_.key, Side::kConnects, challenge, nonce, door_.hello);
    send_all(
        entry_.socket,
        frame_of(HandshakeMessage::kHello,
                 door_.key.magic + ByteWriter().text(nonce).text(door_.hello).text(own).take()),
        give_up_);
    frame = next(deadline_);
    if (!frame || !is(*frame, HandshakeMessage::kWelcome)) {
      return refuse_if_told(frame);
    }
    ByteReader body(frame->body);
    entry_.welcome = body.text();
    if (!equal_secrets(body.text(),
                       proof(door_.key, Side::kAccepts, challenge, nonce, entry_.welcome))) {
      throw_device_error("it does not know the secret of this run");
    }
    return true;
  }

 private:
  /// The next frame; nullopt if the connection ended or it does not come in time.
  std::optional<Frame> next(Clock::time_point end) {
    while (true) {
      if (std::optional<Frame> frame = entry_.in.next(kMaxHelloBytes)) {
        return frame;
      }
      if (give_up_) {
        give_up_();
      }
      if (read_some(entry_.socket, entry_.in.bytes(), kLook) == ReadResult::kEnded ||
          Clock::now() > end) {
        return std::nullopt;
      }
    }
  }

  /// False if there is no frame.
  bool refuse_if_told(const std::optional<Frame>& frame) const {
    if (frame && is(*frame, HandshakeMessage::kRefused)) {
      throw ConfigError(printable(frame->body, kShownBytes));
    }
    if (frame) {
      throw_device_error("no process of braid");
    }
    return false;
  }

  const Door& door_;
  Entry& entry_;
  Clock::time_point deadline_;
  const std::function<void()>& give_up_;
};

}  // namespace

std::string new_secret() {
  return to_hex(random_bytes(kNonceBytes));
}

AcceptedHandshake::AcceptedHandshake() : challenge_(random_bytes(kNonceBytes)) {}

std::string AcceptedHandshake::challenge(const HandshakeKey& key) const {
  return frame_of(HandshakeMessage::kChallenge, key.magic + ByteWriter().text(challenge_).take());
}

AcceptedHandshake::Answer AcceptedHandshake::take_hello(const HandshakeKey& key,
                                                        const Frame& frame) {
  if (!is(frame, HandshakeMessage::kHello)) {
    throw_device_error("a message of type {} before the hello", frame.type);
  }
  ByteReader body = fields_of(key, frame);
  nonce_ = body.text();
  hello_ = body.text();
  const bool is_right =
      equal_secrets(body.text(), proof(key, Side::kConnects, challenge_, nonce_, hello_));
  return is_right ? Answer::kRight : Answer::kWrongSecret;
}

std::string AcceptedHandshake::welcome(const HandshakeKey& key, std::string_view text) const {
  return frame_of(
      HandshakeMessage::kWelcome,
      ByteWriter().text(text).text(proof(key, Side::kAccepts, challenge_, nonce_, text)).take());
}

Entry enter(const Door& door, Clock::time_point deadline, const std::function<void()>& give_up) {
  std::string reason = "it ends connections before it says who it is";
  while (true) {
    Entry entry;
    entry.socket = connect_to(door.address, deadline, give_up);
    try {
      if (Attempt(door, entry, deadline, give_up).run()) {
        return entry;
      }
    } catch (const AbortedError&) {
      throw;
    } catch (const DeviceError& error) {
      reason = error.what();
    }
    if (Clock::now() >= deadline) {
      throw_device_error("who listens at {}, port {} is not of this run: {}", door.address.host,
                         door.address.port, reason);
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

}  // namespace braid
