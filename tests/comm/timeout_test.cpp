#include <atomic>

#include "comm/comm_fixture.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kSoonNs = 20'000'000;

/// The errors of ranks of which those in `bodies` do something, each on a thread.
using Bodies = std::vector<std::function<void(const Transports&)>>;

std::vector<std::string> run_until_timeout(int num_ranks, const Bodies& bodies) {
  const Transports transports =
      make_in_process_transports({.num_ranks = num_ranks, .timeout_ns = kSoonNs});
  return on_threads(static_cast<int>(bodies.size()),
                    [&](int i) { bodies[static_cast<size_t>(i)](transports); });
}

/// The one message that is no echo; all others must echo it.
std::string root_message(const std::vector<std::string>& errors) {
  std::string root;
  for (const std::string& error : errors) {
    if (!error.empty() && error.rfind("aborted: ", 0) != 0) {
      EXPECT_TRUE(root.empty()) << root << "\n" << error;
      root = error;
    }
  }
  for (const std::string& error : errors) {
    EXPECT_TRUE(error.empty() || error == root || error == "aborted: " + root) << error;
  }
  return root;
}

TEST(Timeout, NamesTheMissingRanksAndTheirLastCalls) {
  const Transports transports =
      make_in_process_transports({.num_ranks = 3, .timeout_ns = 5'000'000});
  std::vector<float> four(4);
  std::vector<float> two(2);
  const Group self = make_group("self", {1});
  const Group all = all_ranks(3);
  transports[1]->run(all_reduce_of(self, four, "first"));
  const auto call_of = [&](size_t rank) {
    transports[rank]->run(all_reduce_of(all, two, "second"));
  };
  const std::string told = message_of<DeviceError>([&] { call_of(0); });
  EXPECT_EQ(told,
            "rank 0 waited 0.005 s in group all, call 1, all_reduce of 2 f32 (second), for ranks "
            "1, 2; rank 1: last call all_reduce of 4 f32 (first) in group self, call 1, finished; "
            "rank 2: no call yet");
  ASSERT_TRUE(transports[2]->aborted().has_value());
  EXPECT_EQ(transports[2]->aborted()->reason, told);
  // Those who come later hear the same.
  EXPECT_EQ(message_of<AbortedError>([&] { call_of(1); }), told);
  EXPECT_EQ(message_of<AbortedError>([&] { call_of(2); }), told);
}

TEST(Timeout, OfARecvNamesThePeersLastCall) {
  const Group line = make_group("pipeline", {0, 1}, GroupKind::kPipeline);
  const auto recv_twice = [&](const Transports& transports) {
    std::vector<float> y(6);
    transports[1]->run(recv_of(line, y, 0, 4));
    transports[1]->run(recv_of(line, y, 0, 4));
  };
  const auto send_once = [&](const Transports& transports) {
    std::vector<float> x(6);
    transports[0]->run(send_of(line, x, 1, 4));
  };
  EXPECT_EQ(root_message(run_until_timeout(2, {recv_twice, send_once})),
            "rank 1 waited 0.02 s in group pipeline, channel 4 from rank 0 to rank 1, message 2, "
            "recv of 6 f32 (values), for rank 0; rank 0: last call send of 6 f32 (values) in group "
            "pipeline, channel 4 from rank 0 to rank 1, message 1, finished");
}

TEST(Timeout, OfASendNamesTheReceiver) {
  const Group line = make_group("pipeline", {0, 1});
  EXPECT_EQ(root_message(run_until_timeout(2, {[&](const Transports& transports) {
                                             std::vector<float> x(6);
                                             transports[1]->run(send_of(line, x, 0));
                                           }})),
            "rank 1 waited 0.02 s in group pipeline, channel 0 from rank 1 to rank 0, message 1, "
            "send of 6 f32 (values), for rank 0; rank 0: no call yet");
}

// Rank 0 waits for rank 1, which waits for rank 2, which has stopped: the message leads there.
TEST(Timeout, FollowsTheRanksThatWaitForOthers) {
  const Group first = make_group("first", {0, 1});
  const Group second = make_group("second", {1, 2});
  const Transports transports =
      make_in_process_transports({.num_ranks = 3, .timeout_ns = 200'000'000});
  const auto errors = on_threads(2, [&](int rank) {
    std::vector<float> value(1);
    if (rank == 1) {  // comes later, so that rank 0 is the first whose time is over
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    transports[static_cast<size_t>(rank)]->run(
        all_reduce_of(rank == 0 ? first : second, value, "sum"));
  });
  const std::string told = root_message(errors);
  EXPECT_THAT(told,
              ::testing::AnyOf(  // a loaded machine may turn the ranks round
                  StartsWith("rank 0 waited 0.2 s in group first, call 1, all_reduce of 1 f32 "
                             "(sum), for rank 1; rank 1: waits with all_reduce of 1 f32 (sum) in "
                             "group second, call 1 for rank 2; rank 2: no call yet"),
                  StartsWith("rank 1 waited 0.2 s in group second, call 1, all_reduce of 1 f32 "
                             "(sum), for rank 2; rank 2: no call yet")));
  EXPECT_THAT(told, ::testing::Not(HasSubstr("wait for each other")));
}

// Each sends first, and a send ends when the other side has received: the classic deadlock.
TEST(Timeout, SaysThatRanksWaitForEachOther) {
  const Group line = make_group("pipeline", {0, 1});
  const auto exchange = [&](size_t rank, const Transports& transports) {
    std::vector<float> x(3);
    std::vector<float> y(3);
    const auto peer = static_cast<int64_t>(1 - rank);
    transports[rank]->run(send_of(line, x, peer));
    transports[rank]->run(recv_of(line, y, peer));
  };
  const std::string told =
      root_message(run_until_timeout(2, {[&](const Transports& t) { exchange(0, t); },
                                         [&](const Transports& t) { exchange(1, t); }}));
  EXPECT_THAT(told, AllOf(HasSubstr("waits with send of 3 f32 (values) in group pipeline"),
                          HasSubstr("; all of these ranks wait for each other")));
}

TEST(Timeout, DescribesAllCallsOfARankWithSeveralStreams) {
  const Transports transports =
      make_in_process_transports({.num_ranks = 3, .timeout_ns = 400'000'000});
  const Group pair = make_group("pair", {0, 1});
  const Group other = make_group("other", {1, 2});
  const Group all = all_ranks(3);
  const auto errors = on_threads(3, [&](int thread) {
    std::vector<float> value(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * thread));
    transports[thread == 0 ? 0 : 1]->run(all_reduce_of(
        thread == 0 ? pair : (thread == 1 ? other : all), value, std::to_string(thread)));
  });
  const std::string told = root_message(errors);
  if (told.rfind("rank 0", 0) == 0) {  // else the machine was too busy to keep this order
    EXPECT_EQ(told,
              "rank 0 waited 0.4 s in group pair, call 1, all_reduce of 1 f32 (0), for rank 1; "
              "rank 1: waits with all_reduce of 1 f32 (1) in group other, call 1 for rank 2 and "
              "waits with all_reduce of 1 f32 (2) in group all, call 1 for ranks 0, 2; rank 2: no "
              "call yet");
  }
}

TEST(Timeout, NamesARankWhoseStepIsOverdue) {
  const Transports transports =
      make_in_process_transports({.num_ranks = 3, .timeout_ns = 5'000'000});
  const auto late = [] { std::this_thread::sleep_for(std::chrono::milliseconds(6)); };
  transports[0]->end_step();
  EXPECT_EQ(transports[1]->overdue(), std::nullopt);
  late();
  EXPECT_EQ(transports[0]->overdue(), std::nullopt);
  EXPECT_EQ(transports[1]->overdue(),
            "rank 1 has not ended the step that rank 0 ended 0.005 s ago; rank 1: no call yet");
  transports[1]->end_step();
  EXPECT_EQ(transports[1]->overdue(), std::nullopt);
  EXPECT_EQ(transports[2]->overdue(),
            "rank 2 has not ended the step that rank 0 ended 0.005 s ago; rank 2: no call yet");
  transports[0]->abort("enough");
  EXPECT_EQ(transports[2]->overdue(), std::nullopt);
}

// Its call will fail, and say more.
TEST(Timeout, ARankThatWaitsForOthersIsNotOverdue) {
  const Transports transports =
      make_in_process_transports({.num_ranks = 2, .timeout_ns = 200'000'000});
  const Group all = all_ranks(2);
  std::atomic<bool> begins{false};
  std::thread waiting([&] {
    std::vector<float> value(1);
    begins = true;
    message_of<DeviceError>([&] { transports[1]->run(all_reduce_of(all, value, "sum")); });
  });
  while (!begins) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  transports[0]->end_step();
  for (int i = 0; i < 30; ++i) {  // until after the call has failed
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(transports[1]->overdue(), std::nullopt);
  }
  waiting.join();
}

}  // namespace
}  // namespace braid
