#include "sim/linked_model.h"

#include <gmock/gmock.h>

#include <random>

#include "comm/comm_call.h"
#include "ir/text.h"
#include "sim/fixed_costs.h"
#include "sim/simulate.h"
#include "support/random_ranks.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

/// 1 byte per ns and 100 ns in data groups, 2 and 10 between stages, no limit in tensor groups.
LinkOptions some_links() {
  LinkOptions links;
  links[GroupKind::kData] = {.latency_ns = 100, .bytes_per_s = 1e9};
  links[GroupKind::kPipeline] = {.latency_ns = 10, .bytes_per_s = 2e9};
  return links;
}

/// A copy or a sum takes a ns per element (FixedCosts).
std::unique_ptr<CostModel> linked(const LinkOptions& links = some_links(), int num_ranks = 4) {
  return make_linked_model(std::make_unique<FixedCosts>(small_cluster(num_ranks, 8)), links);
}

OperandSpec operand(Access access, int64_t num_elems) {
  return {.dtype = DType::kF32, .access = access, .shape = {num_elems}};
}

/// A communication op over blocks of `block` elements, among n ranks.
OpSpec comm_spec(CommOp op, int64_t block, int64_t n) {
  const Attribute group{"group", int64_t{0}};
  const OperandSpec whole = operand(Access::kRead, n * block);
  const OperandSpec whole_out = operand(Access::kWrite, n * block);
  OpSpec spec{std::string(comm_op_name(op)), {group}, {whole, whole_out}};
  if (op == CommOp::kAllGather) {
    spec.operands[0] = operand(Access::kRead, block);
  } else if (op == CommOp::kReduceScatter) {
    spec.operands[1] = operand(Access::kWrite, block);
  } else if (op == CommOp::kSend || op == CommOp::kRecv) {
    spec.attributes = {group, {"peer", n - 1}, {"channel", int64_t{0}}};
    spec.operands = {op == CommOp::kSend ? whole : whole_out};
  } else if (op == CommOp::kBroadcast || op == CommOp::kReduce) {
    spec.attributes = {group, {"root", int64_t{0}}};
  } else if (op == CommOp::kRingShift) {
    spec.attributes = {group, {"shift", int64_t{1}}};
  } else if (op == CommOp::kDispatchRows || op == CommOp::kCombineRows) {  // of an expert per rank
    spec.attributes = {
        group, {"experts", n}, {"copies", int64_t{1}}, {"has_weights", false}, {"drops", false}};
    spec.operands.insert(spec.operands.begin() + 1,
                         {.dtype = DType::kI32, .access = Access::kRead, .shape = {n * (n + 1)}});
  }
  return spec;
}

TEST(LinkedModel, TakesTheTimeOfTheLinkScheduleForEveryOpAndSize) {
  std::mt19937 random(7);
  for (size_t i = 0; i < kNumCommOps; ++i) {
    for (const int n : {2, 3, 4, 8}) {
      const auto op = static_cast<CommOp>(i);
      const auto block = static_cast<int64_t>(random() % 100'000 + 1);
      LinkOptions links;
      links[GroupKind::kContext] = {.latency_ns = static_cast<int64_t>(random() % 50'000),
                                    .bytes_per_s = 1e6 * static_cast<double>(random() % 500 + 1)};
      Group group{.name = "g", .kind = GroupKind::kContext, .ranks = {}};
      for (int rank = 0; rank < n; ++rank) {
        group.ranks.push_back(rank);
      }
      const OpSpec spec = comm_spec(op, block, n);
      const std::vector<std::byte*> no_addresses(spec.operands.size());
      LinkSchedule schedule(links, n);
      const int64_t due_ns =
          schedule.add(make_comm_call(spec, group, no_addresses, ""), group.ranks, group.ranks, 0);
      const auto model = linked(links, n);
      const ProgramComm comm = comm_of(*model, spec, 0, group);
      EXPECT_GT(due_ns, 0);
      EXPECT_EQ(comm.link.alone_ns(), due_ns) << spec.op << " of " << n;
      EXPECT_EQ(comm.cost.ns, std::max(due_ns, comm.own_cost.ns)) << spec.op << " of " << n;
    }
  }
}

TEST(LinkedModel, GroupsWithoutALinkOrOfOneRankTakeTheirOwnTime) {
  const OpSpec sum = comm_spec(CommOp::kAllReduce, 500, 2);
  const ProgramComm unlimited =
      comm_of(*linked(), sum, 0, {.name = "t", .kind = GroupKind::kTensor, .ranks = {0, 1}});
  EXPECT_EQ(unlimited.cost.ns, 1000);
  EXPECT_FALSE(unlimited.link.is_limited());
  const ProgramComm alone =
      comm_of(*linked(), sum, 0, {.name = "d", .kind = GroupKind::kData, .ranks = {0}});
  EXPECT_EQ(alone.cost.ns, 0);
  EXPECT_FALSE(alone.link.is_limited());
}

TEST(LinkedModel, OtherPricesAreThoseOfTheModel) {
  const FixedCosts plain(small_cluster(4, 8));
  const auto model = linked();
  const OpSpec copy{"copy", {}, {operand(Access::kRead, 300), operand(Access::kWrite, 300)}};
  EXPECT_EQ(model->task_cost(copy), plain.task_cost(copy));
  EXPECT_EQ(model->host_copy_cost(HostCopy::kToHost, 4000).ns, 1000);
  EXPECT_EQ(model->description(), "fixed, emulated links");
  EXPECT_EQ(plain.links(), nullptr);
}

/// Streams, groups and buffers of a rank of three, then its tasks.
Program rank_program(int rank, int num_events, const std::string& tasks) {
  return parse_program(fmt::format("program step rank={} ranks=3 events={}\n", rank, num_events) +
                       "stream compute kind=compute priority=0\n"
                       "stream one kind=comm priority=1\n"
                       "stream two kind=comm priority=1\n"
                       "group data kind=data ranks=0,1,2\n"
                       "group other kind=data ranks=0,1,2\n"
                       "group pipeline kind=pipeline ranks=0,1,2\n"
                       "buffer x f32 [3000] io persistent device\n"
                       "buffer y f32 [3000] io persistent device\n"
                       "buffer z f32 [3000] io persistent device\n" +
                       tasks);
}

class SimulateLinks : public testing::Test {
 protected:
  /// Start and end of each task, rank by rank.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> times_of(
      const std::array<std::string, 3>& tasks, const SimOptions& options = {}) {
    std::vector<Program> programs;
    for (int rank = 0; rank < 3; ++rank) {
      programs.push_back(rank_program(rank, 1, tasks.at(static_cast<size_t>(rank))));
    }
    const RankPrograms ranks = one_program_per_rank(programs);
    const auto model = linked();
    const SimResult result = simulate(ranks, *model, options);
    std::vector<std::vector<std::pair<int64_t, int64_t>>> times(3);
    for (size_t rank = 0; rank < 3; ++rank) {
      for (const TaskTimes& one :
           braid::times_of(ranks, result, result.ranks[result.alike.kind_of[rank]])) {
        times[rank].emplace_back(one.start_ns, one.end_ns);
      }
    }
    return times;
  }
};

// 1,500 elements are 6,000 bytes, of which an all-reduce of three moves 4/3: 8,000 ns, and 100 to
// arrive. The other group's bytes wait for the lanes, not for the arrival.
TEST_F(SimulateLinks, TransfersOfAKindQueueForTheirLanes) {
  const std::string both =
      "all_reduce(x[0:1500] -> y[0:1500]) {group=0} one comm\n"
      "all_reduce(x[0:1500] -> z[0:1500]) {group=1} two comm\n";
  const auto times = times_of({both, both, both});
  for (const auto& rank : times) {
    EXPECT_THAT(rank, ElementsAre(Pair(0, 8'100), Pair(0, 16'100)));
  }
  EXPECT_THAT(times_of({both, both, both}, {.contention = false}).front(),
              ElementsAre(Pair(0, 8'100), Pair(0, 8'100)));
}

// Rank 0 sends 8,000 bytes to rank 1, which answers (other direction: at once), and 4,000 to
// rank 2, for which its lane out is first free after 4,000 ns; 10 ns of latency each.
TEST_F(SimulateLinks, DirectionsAreApartAndLanesAreThoseOfEachRank) {
  const auto times =
      times_of({"send(x[0:2000]) {group=2, peer=1, channel=0} one comm\n"
                "recv(-> z[0:2000]) {group=2, peer=1, channel=1} compute comm\n"
                "send(x[0:1000]) {group=2, peer=2, channel=2} two comm\n",
                "recv(-> y[0:2000]) {group=2, peer=0, channel=0} one comm\n"
                "send(x[0:2000]) {group=2, peer=0, channel=1} compute comm\n",
                "recv(-> y[0:1000]) {group=2, peer=0, channel=2} one comm\n"});
  EXPECT_THAT(times[0], ElementsAre(Pair(0, 4'010), Pair(0, 4'010), Pair(0, 6'010)));
  EXPECT_THAT(times[1], ElementsAre(Pair(0, 4'010), Pair(0, 4'010)));
  EXPECT_THAT(times[2], ElementsAre(Pair(0, 6'010)));
}

// The 1,500 elements take 1,500 ns of a core in 8,100 ns: 0.185 of it, in whole hundredths of half
// a core 37, so that compute has 1 - 0.5 * 37 / 100 of its rate meanwhile. 2,000 / 0.815 = 2,454.
TEST_F(SimulateLinks, CopyingAndAddingTakesFromComputeWhatItWorks) {
  const std::string both =
      "all_reduce(x[0:1500] -> y[0:1500]) {group=0} one comm\n"
      "copy(x[0:2000] -> z[0:2000]) compute forward\n";
  EXPECT_THAT(times_of({both, both, both}).front(), ElementsAre(Pair(0, 8'100), Pair(0, 2'454)));
}

}  // namespace
}  // namespace braid
