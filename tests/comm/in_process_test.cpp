#include "comm/wires.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class AnyTransport : public testing::TestWithParam<Wire> {};

INSTANTIATE_TEST_SUITE_P(Wires, AnyTransport, testing::Values(Wire::kThreads, Wire::kSockets),
                         wire_name);

// Ranks 0..3 in rows {0,1}, {2,3} and columns {0,2}, {1,3}, and all: three threads per rank, each
// with its own group, many calls in any interleaving.
TEST_P(AnyTransport, GroupsDoNotDisturbEachOther) {
  constexpr int kCalls = 40;
  const Transports transports = make_transports(GetParam(), {.num_ranks = 4});
  const auto group_for = [](int rank, int kind) {
    if (kind == 0) {
      return make_group("row", rank < 2 ? std::vector{0, 1} : std::vector{2, 3});
    }
    return kind == 1 ? make_group("column", {rank % 2, rank % 2 + 2}) : all_ranks(4);
  };
  const auto errors = on_threads(12, [&](int thread) {
    const int rank = thread / 3;
    const Group group = group_for(rank, thread % 3);
    std::mt19937 random(static_cast<uint32_t>(thread));
    for (int call = 0; call < kCalls; ++call) {
      std::vector<double> values(33, 1000.0 * call + rank);
      if (random() % 8 == 0) {
        random_delay(random);
      }
      transports[static_cast<size_t>(rank)]->run(
          all_reduce_of(group, values, std::to_string(call)));
      double expected = 0;
      for (const int member : group.ranks) {
        expected += 1000.0 * call + member;
      }
      ASSERT_THAT(values, Each(expected));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

// Forward and backward of a pipeline and the two dimensions beside it, as a layout uses them.
TEST_P(AnyTransport, ManyKindsOfCallsGoOnAtOnce) {
  constexpr int kRounds = 30;
  const Transports transports = make_transports(GetParam(), {.num_ranks = 4});
  const Group forward = make_group("pipeline.forward", {0, 1, 2, 3}, GroupKind::kPipeline);
  const Group backward = make_group("pipeline.backward", {0, 1, 2, 3}, GroupKind::kPipeline);
  const Group world = make_group("world", {0, 1, 2, 3}, GroupKind::kWorld);
  const auto errors = on_threads(12, [&](int thread) {
    const int rank = thread / 3;
    Transport& transport = *transports[static_cast<size_t>(rank)];
    const bool up = thread % 3 == 0;
    const Group& line = up ? forward : backward;
    const int from = up ? rank - 1 : rank + 1;
    const int to = up ? rank + 1 : rank - 1;
    for (int round = 0; round < kRounds; ++round) {
      if (thread % 3 == 2) {
        std::vector<float> x(20, static_cast<float>(rank));
        std::vector<float> y(20);
        transport.run(call_between(CommOp::kAllToAll, world, x, y));
        EXPECT_EQ(y[19], 3.0f);
        continue;
      }
      std::vector<float> sum(100, 0.0f);
      if (from >= 0 && from < 4) {
        transport.run(recv_of(line, sum, from, round % 2));
      }
      for (float& value : sum) {
        value += static_cast<float>(round + 1);
      }
      if (to >= 0 && to < 4) {
        transport.run(send_of(line, sum, to, round % 2));
      } else {
        EXPECT_THAT(sum, Each(4.0f * static_cast<float>(round + 1)));
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

/// Two ranks make one call each.
std::vector<std::string> call_on_two_ranks(Wire wire,
                                           const std::function<CommCall(const Group&, int)>& make) {
  const Transports transports = make_transports(wire, {.num_ranks = 2});
  const Group group = all_ranks(2);
  return on_threads(
      2, [&](int rank) { transports[static_cast<size_t>(rank)]->run(make(group, rank)); });
}

TEST_P(AnyTransport, NamesBothSidesOfAMismatchOnEveryRank) {
  std::vector<std::vector<double>> x(2, std::vector<double>(100));
  std::vector<std::vector<double>> y(2, std::vector<double>(100));
  const auto good = [&](const Group& group, int rank) {
    CommCall call = call_between(CommOp::kBroadcast, group, x[static_cast<size_t>(rank)],
                                 y[static_cast<size_t>(rank)]);
    call.send_elems = call.recv_elems = 8;
    call.dtype = DType::kF32;
    call.what = "layers.1";
    return call;
  };
  const std::pair<std::function<void(CommCall&)>, const char*> wrong[] = {
      {[](CommCall& call) { call.send_elems = call.recv_elems = 7; },
       "broadcast of 7 f32 with root 0 (layers.1)"},
      {[](CommCall& call) { call.dtype = DType::kBF16; },
       "broadcast of 8 bf16 with root 0 (layers.1)"},
      {[](CommCall& call) { call.what = "layers.2"; }, "broadcast of 8 f32 with root 0 (layers.2)"},
      {[](CommCall& call) { call.root = 1; }, "broadcast of 8 f32 with root 1 (layers.1)"},
      {[](CommCall& call) { call.op = CommOp::kAllToAll; }, "all_to_all of 8 f32 (layers.1)"},
      {[](CommCall& call) {
         call.op = CommOp::kRingShift;
         call.shift = -1;
       },
       "ring_shift of 8 f32 by -1 (layers.1)"}};
  for (const auto& [change, named] : wrong) {
    auto errors = call_on_two_ranks(GetParam(), [&, &spoil = change](const Group& group, int rank) {
      CommCall call = good(group, rank);
      if (rank == 1) {
        spoil(call);
      }
      return call;
    });
    for (std::string& error : errors) {  // over sockets the other's error may be there first
      error.erase(0, error.starts_with("aborted: ") && GetParam() == Wire::kSockets ? 9 : 0);
    }
    EXPECT_THAT(errors, Each(std::string("group all, call 1: rank 0 asks for broadcast of 8 f32 "
                                         "with root 0 (layers.1), but rank 1 for ") +
                             named));
  }
}

TEST_P(AnyTransport, AbortReleasesWaitingRanksAndRefusesLaterCalls) {
  const Transports transports = make_transports(GetParam(), {.num_ranks = 4});
  EXPECT_FALSE(transports[0]->aborted().has_value());
  const Group all = all_ranks(4);
  const auto errors = on_threads(4, [&](int rank) {
    Transport& transport = *transports[static_cast<size_t>(rank)];
    std::vector<float> value(1);
    if (rank == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      transport.abort("rank 3 lost its disk");
      transport.abort("rank 3 lost its head");
    }
    transport.run(rank == 2 ? recv_of(all, value, 3) : all_reduce_of(all, value));
  });
  EXPECT_THAT(errors, Each("aborted: rank 3 lost its disk"));
  ASSERT_TRUE(transports[0]->aborted().has_value());
  EXPECT_EQ(transports[0]->aborted()->reason, "rank 3 lost its disk");
}

// An abort may come at any moment of a call; no rank may then touch a buffer whose owner has left.
// The buffers are freed at once, so that the address and thread sanitizers see a late access.
TEST_P(AnyTransport, AbortAtAnyMomentLeavesNobodyInAFreedBuffer) {
  const Group all = all_ranks(3);
  const uint32_t num_runs = GetParam() == Wire::kThreads ? 40 : 5;
  for (uint32_t run = 0; run < num_runs; ++run) {
    const Transports transports = make_transports(GetParam(), {.num_ranks = 3});
    on_threads(4, [&](int thread) {
      if (thread == 3) {
        std::this_thread::sleep_for(std::chrono::microseconds(37 * run));
        return transports[0]->abort("enough");
      }
      for (int round = 0; round < 1000; ++round) {
        std::vector<float> values(3000);
        transports[static_cast<size_t>(thread)]->run(all_reduce_of(all, values));
        std::vector<float> blocks(9000);
        transports[static_cast<size_t>(thread)]->run(
            call_between(CommOp::kAllGather, all, values, blocks));
        if (thread < 2) {
          transports[static_cast<size_t>(thread)]->run(thread == 0 ? send_of(all, values, 1)
                                                                   : recv_of(all, values, 0));
        }
      }
    });
  }
}

TEST_P(AnyTransport, PreparedCallsRunLikeOthers) {
  const Transports transports = make_transports(GetParam(), {.num_ranks = 2});
  const Group all = all_ranks(2);
  EXPECT_THAT(on_threads(2,
                         [&](int rank) {
                           std::vector<float> values(10, 1.0f);
                           const CommCall call = all_reduce_of(all, values);
                           transports[static_cast<size_t>(rank)]->prepare(call);
                           transports[static_cast<size_t>(rank)]->run(call);
                           transports[static_cast<size_t>(rank)]->run(call);
                           EXPECT_THAT(values, Each(4.0f));
                         }),
              Each(""));
}

TEST_P(AnyTransport, RefusesCallsThatAreBugs) {
  const Transports transports = make_transports(GetParam(), {.num_ranks = 2});
  std::vector<float> value(6);
  const auto message = [&](const CommCall& call) {
    const std::string of_run = message_of<InternalError>([&] { transports[0]->run(call); });
    EXPECT_EQ(message_of<InternalError>([&] { transports[0]->prepare(call); }), of_run);
    return of_run;
  };
  EXPECT_THAT(message(all_reduce_of(make_group("g", {1}), value)),
              HasSubstr("rank 0 is not in group g"));
  EXPECT_THAT(message(all_reduce_of(make_group("g", {0, 0}), value)), HasSubstr("twice"));
  EXPECT_THAT(message(all_reduce_of(make_group("g", {0, 2}), value)),
              AllOf(HasSubstr("group g"), HasSubstr("rank 2 of 2")));
  EXPECT_THAT(message(all_reduce_of(make_group("g", {}), value)), HasSubstr("has no ranks"));
  EXPECT_THROW(make_in_process_transports({.num_ranks = 0}), InternalError);
  EXPECT_THROW(make_in_process_transports({.timeout_ns = 0}), InternalError);
}

TEST_P(AnyTransport, RefusesTwoCallsOfOneRankInOneGroupAtOnce) {
  const Transports transports = make_transports(GetParam(), {.num_ranks = 2});
  const Group all = all_ranks(2);
  const auto bugs = on_threads(2, [&](int) {
    std::vector<float> value(1);
    try {
      transports[0]->run(all_reduce_of(all, value));
    } catch (const InternalError&) {
      transports[0]->abort("found");
      throw;
    }
  });
  EXPECT_THAT(bugs[0] + bugs[1], HasSubstr("rank 0 is in two calls of group all at once"));
}

}  // namespace
}  // namespace braid
