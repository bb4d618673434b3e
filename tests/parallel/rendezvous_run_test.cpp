#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/errors.h"
#include "parallel/rank_faults.h"
#include "parallel/schedule.h"

namespace braid {
namespace {

using ::testing::StartsWith;

TEST(RendezvousRun, FindsTwoRanksThatBothSendFirst) {
  Pair pair;
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto peer = static_cast<int64_t>(1 - rank);
    pair[rank].send({.peer = peer}, 0);
    pair[rank].recv({.peer = peer}, 0);
  }
  EXPECT_EQ(fault_of(pair.take()),
            "deadlock: rank 0 task 0 (send) on stream compute waits in group pair for rank 1; rank "
            "1 task 0 (send) on stream compute waits in group pair for rank 0; and so round");
}

TEST(RendezvousRun, SendsOnStreamsOfTheirOwnMayCross) {
  Pair pair;
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto peer = static_cast<int64_t>(1 - rank);
    pair[rank].send({.peer = peer}, 1);
    pair[rank].recv({.peer = peer}, 0);
  }
  EXPECT_TRUE(faults_of(pair.take()).empty());
}

TEST(RendezvousRun, FindsAMessageToItself) {
  Pair pair;
  pair[0].send({.peer = 0}, 0);
  pair[0].recv({.peer = 0}, 0);
  EXPECT_THAT(fault_of(pair.take()),
              StartsWith("deadlock: rank 0 task 0 (send) on stream compute waits in group pair for "
                         "rank 0; and so round"));
  Pair on_two_streams;
  on_two_streams[0].send({.peer = 0}, 0);
  on_two_streams[0].recv({.peer = 0}, 1);
  EXPECT_TRUE(faults_of(on_two_streams.take()).empty());
}

TEST(RendezvousRun, FindsGroupsEnteredInOppositeOrder) {
  Pair pair;
  for (size_t rank = 0; rank < 2; ++rank) {
    pair[rank].add_group("other", {0, 1});
    pair[rank].collective("all_reduce", rank, 4, 0);
    pair[rank].collective("all_reduce", 1 - rank, 4, 0);
  }
  EXPECT_EQ(fault_of(pair.take()),
            "deadlock: rank 0 task 0 (all_reduce) on stream compute waits in group pair for rank "
            "1; rank 1 task 0 (all_reduce) on stream compute waits in group other for rank 0; and "
            "so round");
}

TEST(RendezvousRun, OppositeOrderOnTwoStreamsIsFoundWhereItMatters) {
  Pair pair;
  for (size_t rank = 0; rank < 2; ++rank) {
    pair[rank].add_group("other", {0, 1});
    pair[rank].collective("all_reduce", rank, 4, rank);
    pair[rank].collective("all_reduce", 1 - rank, 4, 1 - rank);
  }
  const std::vector<Program> programs = pair.take();
  EXPECT_TRUE(faults_of(programs).empty());
  EXPECT_THAT(faults_of(programs, {.one_order_of_collectives = true}),
              ::testing::ElementsAre(
                  "deadlock if collectives keep program order: rank 0 task 0 (all_reduce) waits in "
                  "group pair for rank 1; rank 1 task 0 (all_reduce) waits in group other for rank "
                  "0; and so round"));
}

TEST(RendezvousRun, MessagesNeedNotKeepProgramOrder) {
  Pair pair;
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto peer = static_cast<int64_t>(1 - rank);
    pair[rank].send({.peer = peer}, 1);
    pair[rank].recv({.peer = peer}, 0);
    pair[rank].collective("all_reduce", 0, 4, 0);
  }
  EXPECT_TRUE(faults_of(pair.take(), {.one_order_of_collectives = true}).empty());
}

TEST(RendezvousRun, FindsACircleOverStreamsAndEvents) {
  Pair pair;
  // Rank 0 reduces after its recv, rank 1 sends after the reduction.
  const TaskId reduce0 = pair[0].collective("all_reduce", 0, 4, 1, at_layer(5));
  const TaskId recv = pair[0].recv({.peer = 1}, 0);
  const TaskId reduce1 = pair[1].collective("all_reduce", 0, 4, 1, at_layer(5));
  const TaskId send = pair[1].send({.peer = 0}, 0);
  pair[0].wait(reduce0, recv);
  pair[1].wait(send, reduce1);
  EXPECT_EQ(fault_of(pair.take()),
            "deadlock: rank 0 task 1 (recv) on stream compute waits in group pair for rank 1; rank "
            "1 task 1 (send) on stream compute waits for event e0 of rank 1 task 0 (all_reduce "
            "layers.5) on stream comm; rank 1 task 0 (all_reduce layers.5) on stream comm waits in "
            "group pair for rank 0; rank 0 task 0 (all_reduce layers.5) on stream comm waits for "
            "event e0 of rank 0 task 1 (recv) on stream compute; and so round");
}

TEST(RendezvousRun, FindsAnEventBehindItsOwnWait) {
  Pair pair;
  const TaskId first = pair[0].compute(0);
  const TaskId second = pair[0].compute(0);
  pair[0].wait(first, second);
  EXPECT_EQ(fault_of(pair.take()),
            "deadlock: rank 0 task 0 (copy) on stream compute waits for event e0 of rank 0 task 1 "
            "(copy) on stream compute; and so round");
}

// Pipelines.

enum class Sends { kStreamPerPeer, kStreamPerDirection, kOnTheComputeStream };

/// Jobs of one pipeline rank with their messages: a recv before a job, a send after it.
Program pipeline_program(const ScheduleOptions& options, int rank, Sends sends) {
  std::vector<std::string> streams{"compute"};
  for (int stream = 0; stream < 2 * options.num_ranks; ++stream) {
    streams.push_back(fmt::format("send{}", stream));
  }
  RankProgramWriter writer(rank, options.num_ranks, streams);
  std::vector<int> ranks(static_cast<size_t>(options.num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const size_t groups[] = {writer.add_group("pipeline.forward", ranks),
                           writer.add_group("pipeline.backward", ranks)};
  for (const Job& job : make_schedule(options, rank)) {
    const Label label{
        .phase = Phase::kComm, .microbatch = job.microbatch, .virtual_stage = job.virtual_stage};
    if (job.kind == JobKind::kWgrad) {
      writer.compute(0, label);
      continue;
    }
    const bool is_forward = job.kind == JobKind::kForward;
    const int stage = stage_of(options, rank, job.virtual_stage);
    const auto peer_at = [&](int other) {
      const bool exists = other >= 0 && other < options.num_stages();
      return exists && place_of(options, other).rank != rank ? place_of(options, other).rank : -1;
    };
    const int source = peer_at(is_forward ? stage - 1 : stage + 1);
    const int target = peer_at(is_forward ? stage + 1 : stage - 1);
    const size_t group = groups[is_forward ? 0 : 1];
    if (source >= 0) {
      writer.recv({.group = group, .peer = source}, 0, label);
    }
    const TaskId compute = writer.compute(0, label);
    if (target >= 0) {
      const size_t stream = sends == Sends::kOnTheComputeStream ? 0
                            : sends == Sends::kStreamPerDirection
                                ? 1 + group
                                : 1 + group + 2 * static_cast<size_t>(target);
      const TaskId send = writer.send({.group = group, .peer = target}, stream, label);
      writer.wait(send, compute);
    }
  }
  return writer.take();
}

std::vector<std::string> pipeline_faults(const ScheduleOptions& options, Sends sends) {
  std::vector<Program> programs;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    programs.push_back(pipeline_program(options, rank, sends));
  }
  return faults_of(programs);
}

// A send must wait neither for compute nor for a send to another rank.
TEST(RendezvousRun, NoScheduleDeadlocksWithAStreamOfSendsPerPeer) {
  int checked = 0;
  for (const auto kind :
       {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward, ScheduleKind::kInterleaved,
        ScheduleKind::kZbH1, ScheduleKind::kZbV, ScheduleKind::kDualpipeV}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int stages = 1; stages <= 3; ++stages) {
        for (int64_t microbatches = 1; microbatches <= 13; ++microbatches) {
          const ScheduleOptions options{.kind = kind,
                                        .num_ranks = ranks,
                                        .virtual_stages = stages,
                                        .num_microbatches = microbatches};
          try {
            check_schedule(options);
          } catch (const ConfigError&) {
            continue;
          }
          ASSERT_THAT(pipeline_faults(options, Sends::kStreamPerPeer), ::testing::IsEmpty())
              << schedule_name(kind) << " P=" << ranks << " V=" << stages << " M=" << microbatches;
          const bool is_v = kind == ScheduleKind::kZbV || kind == ScheduleKind::kDualpipeV;
          if (!is_v) {
            ASSERT_THAT(pipeline_faults(options, Sends::kStreamPerDirection), ::testing::IsEmpty())
                << schedule_name(kind) << " P=" << ranks << " V=" << stages
                << " M=" << microbatches;
          }
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 300);
}

// Down and up the V a rank sends forward to two peers.
TEST(RendezvousRun, OneStreamOfSendsPerDirectionIsTooFewForAV) {
  const ScheduleOptions options{
      .kind = ScheduleKind::kZbV, .num_ranks = 4, .virtual_stages = 2, .num_microbatches = 6};
  EXPECT_THAT(pipeline_faults(options, Sends::kStreamPerDirection),
              ::testing::ElementsAre(StartsWith("deadlock: ")));
}

TEST(RendezvousRun, SteadyRanksThatSendOnTheComputeStreamWaitForEachOther) {
  const ScheduleOptions options{.num_ranks = 2, .num_microbatches = 3};
  EXPECT_THAT(
      pipeline_faults(options, Sends::kOnTheComputeStream),
      ::testing::ElementsAre(
          "deadlock: rank 0 task 3 (send mb=1 vs=0) on stream compute waits in group "
          "pipeline.forward for rank 1; rank 1 task 3 (send mb=0 vs=0) on stream compute waits in "
          "group pipeline.backward for rank 0; and so round"));
}

}  // namespace
}  // namespace braid
