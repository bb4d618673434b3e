#include "comm/wires.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class Messages : public testing::TestWithParam<Wire> {};

INSTANTIATE_TEST_SUITE_P(Wires, Messages, testing::Values(Wire::kThreads, Wire::kSockets),
                         wire_name);

TEST_P(Messages, ArriveInOrderPerChannel) {
  constexpr int kMessages = 50;
  const Transports transports = make_transports(GetParam(), {.num_ranks = 3});
  const Group group = make_group("pipeline", {2, 0, 1});  // rank 0 is member 1, rank 1 member 2
  const auto errors = on_threads(4, [&](int thread) {
    std::mt19937 random(static_cast<uint32_t>(thread));
    const int64_t channel = thread % 2;
    const bool sends = thread < 2;
    for (int message = 0; message < kMessages; ++message) {
      if (random() % 4 == 0) {
        random_delay(random);
      }
      const auto size = static_cast<size_t>((message * 37) % 200);
      const auto expected =
          random_values<float>(size, static_cast<uint32_t>(1000 * channel + message));
      std::vector<float> values = sends ? expected : std::vector<float>(size);
      if (sends) {
        transports[0]->run(send_of(group, values, 2, channel));
      } else {
        transports[1]->run(recv_of(group, values, 1, channel));
        EXPECT_TRUE(same_bytes(values, expected)) << channel << " " << message;
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

// A send ends only when the data is at the receiver's: the buffer is overwritten and freed at once.
TEST_P(Messages, LeaveTheSendersBufferAlone) {
  constexpr int kMessages = 200;
  const Transports transports = make_transports(GetParam(), {.num_ranks = 2});
  const Group group = all_ranks(2);
  const auto errors = on_threads(2, [&](int rank) {
    for (int message = 0; message < kMessages; ++message) {
      std::vector<int32_t> values(1000, rank == 0 ? message : -1);
      if (rank == 0) {
        transports[0]->run(send_of(group, values, 1));
        std::fill(values.begin(), values.end(), -2);
      } else {
        transports[1]->run(recv_of(group, values, 0));
        EXPECT_THAT(values, Each(message));
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(Messages, CrossEachOtherOnTwoStreamsPerRank) {
  constexpr int kRounds = 40;
  const Transports transports = make_transports(GetParam(), {.num_ranks = 2});
  const Group group = all_ranks(2);
  const auto errors = on_threads(4, [&](int thread) {
    const int rank = thread / 2;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values(64, static_cast<float>(10 * round + rank));
      if (thread % 2 == 0) {
        transports[static_cast<size_t>(rank)]->run(send_of(group, values, 1 - rank));
      } else {
        transports[static_cast<size_t>(rank)]->run(recv_of(group, values, 1 - rank));
        EXPECT_THAT(values, Each(static_cast<float>(10 * round + 1 - rank)));
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

// Every rank passes what it has got to the next one, with the first rank sending first: after n
// rounds all have their own again.
TEST_P(Messages, RunInRings) {
  for (const int n : {2, 3, 5, 8}) {
    const Transports transports = make_transports(GetParam(), {.num_ranks = n});
    const Group group = all_ranks(n);
    const auto errors = on_threads(n, [&](int rank) {
      std::mt19937 random(static_cast<uint32_t>(rank));
      std::vector<double> own(129, rank);
      std::vector<double> next(129);
      for (int round = 0; round < n; ++round) {
        random_delay(random);
        const CommCall send = send_of(group, own, (rank + 1) % n);
        const CommCall recv = recv_of(group, next, (rank + n - 1) % n);
        transports[static_cast<size_t>(rank)]->run(rank == 0 ? send : recv);
        transports[static_cast<size_t>(rank)]->run(rank == 0 ? recv : send);
        std::swap(own, next);
        EXPECT_THAT(own, Each((rank + n - 1 - round) % n));
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST_P(Messages, MayBeEmpty) {
  const Transports transports = make_transports(GetParam(), {.num_ranks = 2});
  const Group group = all_ranks(2);
  EXPECT_THAT(on_threads(2,
                         [&](int rank) {
                           std::vector<float> none;
                           transports[static_cast<size_t>(rank)]->run(
                               rank == 0 ? send_of(group, none, 1) : recv_of(group, none, 0));
                         }),
              Each(""));
}

TEST_P(Messages, NameBothEndsOfAMismatch) {
  const Group group = make_group("pipeline", {0, 1}, GroupKind::kPipeline);
  for (const bool other_size : {false, true}) {
    const Transports transports = make_transports(GetParam(), {.num_ranks = 2});
    auto errors = on_threads(2, [&](int rank) {
      std::vector<float> x(8);
      std::vector<float> short_y(7);
      std::vector<int32_t> integers(8);
      if (rank == 0) {
        transports[0]->run(send_of(group, x, 1, 3));
      } else {
        transports[1]->run(other_size ? recv_of(group, short_y, 0, 3)
                                      : recv_of(group, integers, 0, 3));
      }
    });
    for (std::string& error : errors) {  // over sockets the other's error may be there first
      error.erase(0, error.starts_with("aborted: ") && GetParam() == Wire::kSockets ? 9 : 0);
    }
    EXPECT_THAT(errors,
                Each(std::string("group pipeline, channel 3 from rank 0 to rank 1, message 1: rank "
                                 "0 asks for send of 8 f32 (values), but rank 1 for recv of ") +
                     (other_size ? "7 f32 (values)" : "8 i32 (values)")));
  }
}

TEST_P(Messages, AreRefusedToOneselfAndToNobody) {
  const Transports transports = make_transports(GetParam(), {.num_ranks = 2});
  const Group group = all_ranks(2);
  std::vector<float> x(3);
  EXPECT_THAT(message_of<InternalError>([&] { transports[0]->run(send_of(group, x, 0)); }),
              HasSubstr("send of 3 f32 (values) in group all: rank 0 cannot exchange messages with "
                        "itself"));
  EXPECT_THAT(message_of<InternalError>([&] { transports[0]->run(recv_of(group, x, 2)); }),
              HasSubstr("recv of 3 f32 (values) in group all of 2 ranks: member 2 does not exist"));
}

}  // namespace
}  // namespace braid
