// Runs of several ranks, from the rendezvous to a sum over the mesh, while strangers attack every
// port of theirs: each run must come to its end as if nobody were there.
#include <chrono>
#include <memory>
#include <random>

#include "comm/tcp/attackers.h"
#include "comm/tcp/rendezvous_protocol.h"
#include "comm/wires.h"
#include "support/thinned.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTimeoutNs = 10'000'000'000;
constexpr std::chrono::seconds kLimit{15};  // the timeout and 5 s
constexpr int kNumRuns = kSanitized ? 50 : 500;
constexpr std::string_view kSecret = "the secret of the attacked runs";

/// What one rank does. Throws if anything is wrong.
void run_rank(int rank, int num_ranks, int port, Socket listener) {
  const auto processes = make_tcp_rendezvous({.num_processes = num_ranks,
                                              .process = rank,
                                              .address = {"127.0.0.1", port},
                                              .listener = std::move(listener),
                                              .run = "attacked",
                                              .secret = std::string(kSecret),
                                              .timeout_ns = kTimeoutNs});
  {
    const auto transport =
        make_socket_transport({.processes = processes.get(), .timeout_ns = kTimeoutNs});
    const Group all = all_ranks(num_ranks);
    std::vector<float> x(7, static_cast<float>(rank + 1));
    transport->run(all_reduce_of(all, x));
    EXPECT_THAT(x, testing::Each(static_cast<float>(num_ranks * (num_ranks + 1) / 2)));
    processes->barrier("the sum");
  }
  processes->finish();
}

TEST(AttackedRuns, AllEndAsIfNobodyWereThere) {
  const std::string replay = recorded_hello(
      {.magic = std::string(kRendezvousMagic), .secret = std::string(kSecret)},
      ByteWriter().text("attacked").text("").number(2).number(1).text("box:7").take());
  int num_connections = 0;
  Clock::duration longest{};
  for (int run = 0; run < kNumRuns; ++run) {
    SCOPED_TRACE(run);
    std::mt19937 random(static_cast<uint32_t>(run));
    const int num_ranks = 2 + static_cast<int>(random() % 3);
    Socket listener = listen_on_loopback(0);
    const int port = port_of(listener);
    const Clock::time_point begin = Clock::now();
    Attackers attackers({.port = port, .seed = static_cast<uint32_t>(random()), .replay = replay});
    const auto errors = on_threads(num_ranks, [&](int rank) {
      run_rank(rank, num_ranks, port, rank == 0 ? std::move(listener) : Socket());
    });
    ASSERT_THAT(errors, testing::Each(""));
    longest = std::max(longest, Clock::now() - begin);
    num_connections += attackers.num_connections();
  }
  EXPECT_LT(longest, kLimit);
  EXPECT_GT(num_connections, kNumRuns);
  RecordProperty("longest_run_ms", static_cast<int>(longest / std::chrono::milliseconds(1)));
  RecordProperty("connections_of_attackers", num_connections);
}

}  // namespace
}  // namespace braid
