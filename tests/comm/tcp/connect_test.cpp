#include "comm/tcp/connect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <stdexcept>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// A port of this host that answers no connection: its queue is full, so the system drops the
/// first packets of others, as a firewall does.
class SilentPort {
 public:
  SilentPort() : listener_(listen_on_loopback(0)) {
    ::listen(listener_.fd(), 0);
    for (int i = 0; i < 4; ++i) {  // Linux accepts one or two more than the queue holds
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<uint16_t>(port()));
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      waiting_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      ::connect(waiting_.back().fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
  }
  int port() const { return port_of(listener_); }

 private:
  Socket listener_;
  std::vector<Socket> waiting_;
};

TEST(ConnectTo, EndsAtTheDeadlineIfTheAddressIsSilent) {
  const SilentPort silent;
  const Clock::time_point begin = Clock::now();
  EXPECT_THAT(message_of<DeviceError>([&] {
                connect_to({"127.0.0.1", silent.port()}, begin + std::chrono::milliseconds(200));
              }),
              HasSubstr("cannot connect to 127.0.0.1, port"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));  // the system itself waits two minutes
}

TEST(ConnectTo, IsGivenUpWhileTheAddressIsSilent) {
  const SilentPort silent;
  int num_looks = 0;
  const auto give_up = [&] {
    if (++num_looks == 3) {
      throw std::runtime_error("given up");
    }
  };
  EXPECT_THROW(
      connect_to({"127.0.0.1", silent.port()}, Clock::now() + std::chrono::hours(1), give_up),
      std::runtime_error);
}

TEST(ConnectTo, SaysThatThereIsNoSuchHost) {
  EXPECT_THAT(message_of<DeviceError>([&] {
                connect_to({"no-such-host.invalid", 1}, Clock::now());
              }),
              HasSubstr("cannot connect to no-such-host.invalid, port 1: "));
}

}  // namespace
}  // namespace braid
