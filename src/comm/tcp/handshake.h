#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "comm/tcp/connect.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/socket.h"

namespace braid {

/// How a connection between processes of a run begins, as frames (frame.h). Each side proves that
/// it knows the run's secret: with a code (HMAC) over random bytes of both sides and over what it
/// says. The secret is not sent, and a recorded hello fits no other connection.
enum class HandshakeMessage : uint8_t {
  kHello = 1,       ///< who connects: magic, its random bytes, what it says, proof
  kChallenge = 64,  ///< who accepts, first: magic, random bytes
  kWelcome,         ///< who accepts: what it says, proof
  kRefused,         ///< who accepts: reason
};

/// The longest frame before the other side has proved that it belongs to the run.
inline constexpr size_t kMaxHelloBytes = 4096;

struct HandshakeKey {
  std::string magic;   ///< the kind of connection, and the version of its messages
  std::string secret;  ///< of the run
};

/// A secret that nobody can guess: 64 hexadecimal digits.
std::string new_secret();

/// The side that accepts a connection.
class AcceptedHandshake {
 public:
  AcceptedHandshake();

  /// The first frame.
  std::string challenge(const HandshakeKey& key) const;
  enum class Answer : uint8_t { kRight, kWrongSecret };
  /// Reads the hello. Throws DeviceError for bytes that no process of this kind sends.
  Answer take_hello(const HandshakeKey& key, const Frame& frame);
  /// What the other side says in its hello.
  const std::string& hello() const { return hello_; }
  /// The reply that lets it in.
  std::string welcome(const HandshakeKey& key, std::string_view text) const;

 private:
  std::string challenge_;
  std::string nonce_;  // random bytes of the other side
  std::string hello_;
};

/// What the side that connects needs.
struct Door {
  Endpoint address;
  HandshakeKey key;
  std::string hello;  ///< says who it is
};

struct Entry {
  Socket socket;
  FrameBuffer in;       ///< of the socket
  std::string welcome;  ///< says who accepted
};

/// Connects and says hello. If the connection ends or is silent before the welcome, it connects
/// again until `deadline`: the other side may have too many connections at the moment. Throws
/// ConfigError with the reason if that side refuses this one, and DeviceError if there is none or
/// if it does not know the secret. `give_up` as of connect_to.
Entry enter(const Door& door, std::chrono::steady_clock::time_point deadline,
            const std::function<void()>& give_up = {});

}  // namespace braid
