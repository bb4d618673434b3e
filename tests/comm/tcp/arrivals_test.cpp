#include "comm/tcp/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "comm/transport.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const HandshakeKey kKey{.magic = "arrivals of a test", .secret = "hidden"};

Clock::time_point soon() {
  return Clock::now() + std::chrono::seconds(20);
}

/// A door that lets in who says hello, in a thread.
class Doorkeeper {
 public:
  explicit Doorkeeper(size_t most_unknown = 64, milliseconds patience = milliseconds(60'000))
      : Doorkeeper(listen_on_loopback(0), most_unknown, patience) {}
  ~Doorkeeper() {
    ends_ = true;
    thread_.join();
  }
  Doorkeeper(const Doorkeeper&) = delete;
  Doorkeeper& operator=(const Doorkeeper&) = delete;

  Endpoint address() const { return {"127.0.0.1", port_}; }
  Entry let_in(const std::string& hello) const {
    return enter({.address = address(), .key = kKey, .hello = hello}, soon());
  }

 private:
  Doorkeeper(Socket listener, size_t most_unknown, milliseconds patience)
      : port_(port_of(listener)),
        door_(std::move(listener),
              {.key = kKey, .most_unknown = most_unknown, .patience = patience}),
        thread_([this] { serve(); }) {}

  void serve() {
    std::vector<Arrival> guests;  // their connections last
    while (!ends_) {
      std::vector<pollfd> polled;
      door_.add_to(polled);
      ::poll(polled.data(), polled.size(), 1);
      for (Arrival& arrival : door_.look()) {
        std::string welcome = arrival.handshake.welcome(kKey, "for " + arrival.handshake.hello());
        send_some(arrival.socket, welcome);
        guests.push_back(std::move(arrival));
      }
    }
  }

  int port_;
  Arrivals door_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

/// Whether the other side ends the connection before `end`.
bool ends(const Socket& socket, Clock::time_point end) {
  std::string ignored;
  while (Clock::now() < end) {
    if (read_some(socket, ignored, milliseconds(10)) == ReadResult::kEnded) {
      return true;
    }
  }
  return false;
}

TEST(Arrivals, SilentStrangersDelayNobody) {
  const Doorkeeper door;
  std::vector<Socket> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(connect_to(door.address(), soon()));
  }
  EXPECT_EQ(door.let_in("a rank").welcome, "for a rank");
  EXPECT_FALSE(ends(silent.front(), Clock::now() + milliseconds(20)));
}

TEST(Arrivals, OneMoreStrangerThanAllowedEndsTheOldest) {
  const Doorkeeper door(3);
  std::vector<Socket> silent;
  for (int i = 0; i < 4; ++i) {
    silent.push_back(connect_to(door.address(), soon()));
  }
  EXPECT_TRUE(ends(silent[0], soon()));
  EXPECT_FALSE(ends(silent[1], Clock::now() + milliseconds(20)));
  EXPECT_EQ(door.let_in("a rank").welcome, "for a rank");
}

// A byte now and then is no hello.
TEST(Arrivals, TheDeadlineOfAStrangerCountsFromItsConnection) {
  const Doorkeeper door(64, milliseconds(300));
  const Socket slow = connect_to(door.address(), soon());
  const std::string hello = pack_frame(static_cast<uint8_t>(HandshakeMessage::kHello),
                                       kKey.magic + std::string(4000, 'x'));
  std::string ignored;
  bool ended = false;
  for (size_t i = 0; i < hello.size() && !ended; ++i) {
    send_all(slow, hello.substr(i, 1));
    ended = read_some(slow, ignored, milliseconds(5)) == ReadResult::kEnded;
  }
  EXPECT_TRUE(ended);
}

TEST(Arrivals, ARecordedHelloFitsNoOtherConnection) {
  const Doorkeeper door;
  std::string recorded;
  {  // of a rank that tells it to a wrong door, which has the challenge from nowhere
    AcceptedHandshake elsewhere;
    const Socket listener = listen_on_loopback(0);
    std::thread rank([&] {
      EXPECT_THROW(
          enter({.address = {"127.0.0.1", port_of(listener)}, .key = kKey, .hello = "a rank"},
                Clock::now() + milliseconds(300)),
          DeviceError);
    });
    std::optional<Socket> socket;
    while (!(socket = accept_from(listener))) {
    }
    send_all(*socket, elsewhere.challenge(kKey));
    FrameBuffer in;
    std::optional<Frame> frame;
    while (!(frame = in.next(kMaxHelloBytes))) {
      read_some(*socket, in.bytes(), milliseconds(10));
    }
    recorded = pack_frame(frame->type, frame->body);
    rank.join();
  }
  ASSERT_THAT(recorded, HasSubstr("a rank"));
  const Socket replay = connect_to(door.address(), soon());
  send_all(replay, recorded);
  FrameBuffer in;
  std::vector<uint8_t> types;
  while (read_some(replay, in.bytes(), milliseconds(100)) != ReadResult::kEnded) {
    while (const auto frame = in.next(kMaxHelloBytes)) {
      types.push_back(frame->type);
    }
  }
  EXPECT_THAT(types, ElementsAre(static_cast<uint8_t>(HandshakeMessage::kChallenge),
                                 static_cast<uint8_t>(HandshakeMessage::kRefused)));
}

TEST(Enter, NeedsTheSecretOnBothSides) {
  const Doorkeeper door;
  EXPECT_THAT(message_of<ConfigError>([&] {
                enter({.address = door.address(),
                       .key = {.magic = kKey.magic, .secret = "guessed"},
                       .hello = "a rank"},
                      soon());
              }),
              HasSubstr("it has another secret"));
  // Who lets everybody in, without the secret.
  const Socket listener = listen_on_loopback(0);
  std::thread stranger([&] {
    const HandshakeKey guessed{.magic = kKey.magic, .secret = "guessed"};
    std::optional<Socket> socket;
    while (!(socket = accept_from(listener))) {
    }
    AcceptedHandshake handshake;
    send_all(*socket, handshake.challenge(guessed));
    FrameBuffer in;
    std::optional<Frame> frame;
    while (!(frame = in.next(kMaxHelloBytes))) {
      read_some(*socket, in.bytes(), milliseconds(10));
    }
    handshake.take_hello(guessed, *frame);
    send_all(*socket, handshake.welcome(guessed, "all"));
  });
  EXPECT_THAT(message_of<DeviceError>([&] {
                enter({.address = {"127.0.0.1", port_of(listener)}, .key = kKey, .hello = "a rank"},
                      Clock::now() + milliseconds(300));
              }),
              HasSubstr("is not of this run: it does not know the secret"));
  stranger.join();
}

TEST(Enter, NamesOtherProgramsAsSuch) {
  const Socket listener = listen_on_loopback(0);
  const auto challenge = static_cast<uint8_t>(HandshakeMessage::kChallenge);
  for (const std::string& bytes :
       {pack_frame(99, "hello"), pack_frame(challenge, "another program")}) {
    std::atomic<bool> ends = false;
    std::thread stranger([&] {
      std::vector<Socket> connections;  // they last, so that nothing of them is lost
      while (!ends) {
        if (std::optional<Socket> socket = accept_from(listener)) {
          send_all(*socket, bytes);
          connections.push_back(std::move(*socket));
        }
        std::this_thread::yield();
      }
    });
    EXPECT_THAT(message_of<DeviceError>([&] {
                  enter(
                      {.address = {"127.0.0.1", port_of(listener)}, .key = kKey, .hello = "a rank"},
                      Clock::now() + milliseconds(300));
                }),
                HasSubstr("is not of this run: no process of braid"));
    ends = true;
    stranger.join();
  }
}

TEST(Enter, EndsWhenItsCallerGivesUp) {
  const Socket silent = listen_on_loopback(0);
  EXPECT_EQ(message_of<AbortedError>([&] {
              enter({.address = {"127.0.0.1", port_of(silent)}, .key = kKey, .hello = "a rank"},
                    soon(), [] { throw AbortedError("the run has ended"); });
            }),
            "the run has ended");
}

TEST(Arrivals, BytesOfStrangersAreNoArrivals) {
  Socket listener = listen_on_loopback(0);
  const Endpoint address{"127.0.0.1", port_of(listener)};
  Arrivals door(std::move(listener), {.key = kKey, .patience = milliseconds(60'000)});
  const std::string huge =
      ByteWriter().number(uint32_t{0xFFFFFFFF}).number(HandshakeMessage::kHello).take();
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), huge, pack_frame(1, kKey.magic),
        pack_frame(1, "another program"), pack_frame(2, kKey.magic + "and more")}) {
    const Socket stranger = connect_to(address, soon());
    send_all(stranger, bytes);
    while (!ends(stranger, Clock::now() + milliseconds(10))) {
      EXPECT_THAT(door.look(), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace braid
