#include <memory>

#include "comm/wires.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kSoonNs = 200'000'000;

Transports sockets(int num_ranks, int64_t timeout_ns = kSoonNs) {
  return make_transports(Wire::kSockets, {.num_ranks = num_ranks, .timeout_ns = timeout_ns});
}

// What a rank is at is known to its own process alone, which is asked.
TEST(SocketTransport, NamesTheMissingRanksAndTheirLastCalls) {
  const Transports transports = sockets(3);
  std::vector<float> four(4);
  std::vector<float> two(2);
  const Group self = make_group("self", {1});
  const Group all = all_ranks(3);
  transports[1]->run(all_reduce_of(self, four, "first"));
  EXPECT_EQ(message_of<DeviceError>([&] { transports[0]->run(all_reduce_of(all, two, "second")); }),
            "rank 0 waited 0.2 s in group all, call 1, all_reduce of 2 f32 (second), for ranks 1, "
            "2; rank 1: last call all_reduce of 4 f32 (first) in group self, call 1, finished; "
            "rank 2: no call yet");
}

TEST(SocketTransport, FollowsTheRanksThatWaitForOthers) {
  const Group first = make_group("first", {0, 1});
  const Group second = make_group("second", {1, 2});
  const Transports transports = sockets(3);
  const auto errors = on_threads(2, [&](int rank) {
    std::vector<float> value(1);
    if (rank == 1) {  // comes later, so that rank 0 is the first whose time is over
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    transports[static_cast<size_t>(rank)]->run(
        all_reduce_of(rank == 0 ? first : second, value, "sum"));
  });
  const std::string told = errors[0].starts_with("aborted: ") ? errors[0].substr(9) : errors[0];
  EXPECT_THAT(told,
              ::testing::AnyOf(  // a loaded machine may turn the ranks round
                  StartsWith("rank 0 waited 0.2 s in group first, call 1, all_reduce of 1 f32 "
                             "(sum), for rank 1; rank 1: waits with all_reduce of 1 f32 (sum) in "
                             "group second, call 1 for rank 2; rank 2: no call yet"),
                  StartsWith("rank 1 waited 0.2 s in group second, call 1, all_reduce of 1 f32 "
                             "(sum), for rank 2; rank 2: no call yet")));
}

TEST(SocketTransport, SaysThatRanksWaitForEachOther) {
  const Group line = make_group("pipeline", {0, 1}, GroupKind::kPipeline);
  const Transports transports = sockets(2);
  const auto errors = on_threads(2, [&](int rank) {
    std::vector<float> x(3);
    transports[static_cast<size_t>(rank)]->run(send_of(line, x, 1 - rank));
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("waits with send of 3 f32 (values) in group pipeline"),
                               HasSubstr("; all of these ranks wait for each other")));
}

TEST(SocketTransport, NamesARankWhoseStepIsOverdue) {
  const Transports transports = sockets(2, 5'000'000);
  transports[0]->end_step();
  std::optional<std::string> told;
  for (int look = 0; look < 1000 && !told; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    told = transports[1]->overdue();
  }
  EXPECT_EQ(told,
            "rank 1 has not ended the step that rank 0 ended 0.005 s ago; rank 1: no call yet");
  EXPECT_EQ(transports[0]->overdue(), std::nullopt);
}

TEST(SocketTransport, CallsOfARankThatHasEndedFail) {
  const auto processes = std::make_shared<LocalProcesses>(3);
  std::vector<std::unique_ptr<Transport>> transports(3);
  on_threads(3, [&](int rank) {
    transports[static_cast<size_t>(rank)] =
        make_socket_transport({.processes = &(*processes)[rank], .timeout_ns = 60'000'000'000});
  });
  const Group all = all_ranks(3);
  const auto errors = on_threads(3, [&](int rank) {
    std::vector<float> value(1);
    if (rank == 2) {
      transports[2].reset();
      return processes->drop(2);
    }
    transports[static_cast<size_t>(rank)]->run(all_reduce_of(all, value));
  });
  EXPECT_THAT(errors[0], AllOf(StartsWith("aborted: rank 2 ("), HasSubstr("has given up")));
  EXPECT_EQ(errors[1], errors[0]);
  transports.clear();
}

}  // namespace
}  // namespace braid
