#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "comm/tcp/connect.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/rendezvous_protocol.h"

namespace braid {

/// The ports of this process that listen: those of the ranks that run in it.
inline std::vector<int> listening_ports() {
  constexpr int kMostDescriptors = 1024;
  std::vector<int> ports;
  for (int fd = 3; fd < kMostDescriptors; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    sockaddr_storage address{};
    socklen_t address_size = sizeof address;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_size) == 0) {
      ports.push_back(ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port));
    }
  }
  return ports;
}

/// The hello of a rank that knows the secret, as somebody records it who sits on the network.
inline std::string recorded_hello(const HandshakeKey& key, const std::string& hello) {
  const Socket listener = listen_on_loopback(0);
  std::thread rank([&] {
    const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    try {
      enter({.address = {"127.0.0.1", port_of(listener)}, .key = key, .hello = hello}, soon);
    } catch (const DeviceError&) {  // nobody welcomes it
    }
  });
  std::optional<Socket> socket;
  while (!(socket = accept_from(listener))) {
  }
  send_all(*socket, AcceptedHandshake().challenge(key));
  FrameBuffer in;
  std::optional<Frame> frame;
  while (!(frame = in.next(kMaxHelloBytes))) {
    read_some(*socket, in.bytes(), std::chrono::milliseconds(10));
  }
  rank.join();
  return pack_frame(frame->type, frame->body);
}

enum class Attack {
  kSilence,       // connects, and says nothing
  kNoise,         // random bytes
  kHalfHello,     // what a rank would say, cut off, and then silence
  kHugeLength,    // announces a message of up to 4 GiB
  kWrongSecret,   // a whole hello by the rules, with a guessed secret
  kReplay,        // the recorded hello of a rank
  kEarlyMessage,  // an abort of the run, before any hello
  kReset,         // ends the connection in the middle of a hello
  kFlood,         // many connections at once
};
inline constexpr int kNumAttacks = 9;

struct AttackOptions {
  int port = 0;  ///< of the rendezvous; the others are looked up
  uint32_t seed = 0;
  std::string replay;  ///< a recorded hello
  int most_connections = 160;
};

/// Strangers who connect to all ports of this process, in a thread, until they are stopped. They
/// keep the connections of silent attacks until then.
class Attackers {
 public:
  explicit Attackers(AttackOptions options)
      : options_(std::move(options)), random_(options_.seed), thread_([this] { attack(); }) {}
  ~Attackers() {
    stop_ = true;
    thread_.join();
  }
  Attackers(const Attackers&) = delete;
  Attackers& operator=(const Attackers&) = delete;

  /// Connections that they made so far.
  int num_connections() const { return num_connections_; }

 private:
  using Clock = std::chrono::steady_clock;

  void attack() {
    while (!stop_ && num_connections_ < options_.most_connections) {
      std::vector<int> ports = listening_ports();
      ports.push_back(options_.port);
      try {
        attack_once(ports[random_() % ports.size()]);
      } catch (const Error&) {  // nobody listens there any more, or we were refused
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    }
  }

  Socket connect(int port) {
    ++num_connections_;
    return connect_to({"127.0.0.1", port}, Clock::now());
  }

  static std::string hello_with(std::string_view proof) {
    const std::string fields = ByteWriter()
                                   .text(std::string(32, 'n'))
                                   .text(ByteWriter().text("attacked").text("").number(2).take())
                                   .text(proof)
                                   .take();
    return pack_frame(static_cast<uint8_t>(HandshakeMessage::kHello),
                      std::string(kRendezvousMagic) + fields);
  }
  static std::string hello_bytes() { return hello_with("proof"); }
  /// With the code of another secret.
  std::string guess() {
    std::string code(32, '\0');
    std::ranges::generate(code, [this] { return static_cast<char>(random_()); });
    return hello_with(code);
  }

  std::string noise() {
    std::string bytes(1 + random_() % 3000, '\0');
    std::ranges::generate(bytes, [this] { return static_cast<char>(random_()); });
    return bytes;
  }

  void attack_once(int port) {
    switch (static_cast<Attack>(random_() % kNumAttacks)) {
      case Attack::kSilence:
        return keep(connect(port), {});
      case Attack::kNoise:
        return keep(connect(port), noise());
      case Attack::kHalfHello: {
        const std::string hello = hello_bytes();
        return keep(connect(port), hello.substr(0, 1 + random_() % (hello.size() - 1)));
      }
      case Attack::kHugeLength:
        return keep(connect(port), ByteWriter()
                                       .number(static_cast<uint32_t>(0xFFFFFFFF - random_() % 9))
                                       .number(HandshakeMessage::kHello)
                                       .take());
      case Attack::kWrongSecret:
        return keep(connect(port), guess());
      case Attack::kReplay:
        return keep(connect(port), options_.replay);
      case Attack::kEarlyMessage:
        return keep(connect(port),
                    pack_frame(static_cast<uint8_t>(RendezvousMessage::kAbort), "\x1b[2Jowned"));
      case Attack::kReset:
        return reset(port);
      case Attack::kFlood:
        for (int i = 0; i < 64; ++i) {
          keep(connect(port), {});
        }
    }
  }

  void keep(Socket socket, std::string bytes) {
    send_some(socket, bytes);
    kept_.push_back(std::move(socket));
  }

  void reset(int port) {
    const Socket socket = connect(port);
    std::string bytes = hello_bytes();
    bytes.resize(random_() % bytes.size());
    send_some(socket, bytes);
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

  const AttackOptions options_;
  std::mt19937 random_;
  std::vector<Socket> kept_;
  std::atomic<int> num_connections_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace braid
