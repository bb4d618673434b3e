#include "sim/critical_path.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ir/text.h"
#include "ops/op.h"
#include "sim/fixed_costs.h"
#include "sim/op_family.h"
#include "support/random_ranks.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two ranks; tasks take as many ns as x has elements in their range.
Program rank_program(int rank, int num_events, const std::string& tasks) {
  return parse_program(fmt::format("program step rank={} ranks=2 events={}\n", rank, num_events) +
                       "stream compute kind=compute priority=0\n"
                       "stream second kind=compute priority=1\n"
                       "stream comm kind=comm priority=1\n"
                       "group data kind=data ranks=0,1\n"
                       "buffer x f32 [1000] io persistent device\n"
                       "buffer w f32 [1,1] io persistent device\n"
                       "buffer y f32 [1000] io persistent device\n" +
                       tasks);
}

constexpr Contention kHalves{.gemm_and_sm_comm = {.compute = 0.5},
                             .memory_bound_and_sm_comm = {.compute = 0.5},
                             .compute_and_copy_engine = {},
                             .comm_sms = 8};

class CriticalPath : public testing::Test {
 protected:
  std::vector<PathTask> path_of(int num_events, const std::string& tasks0,
                                const std::string& tasks1) {
    programs_ = {rank_program(0, num_events, tasks0), rank_program(1, num_events, tasks1)};
    const MatchedPrograms matched(one_program_per_rank(programs_), model_);
    return critical_path(matched, model_, simulate(matched, model_, options_));
  }

  FixedCosts model_{small_cluster(2, 8), kHalves};
  SimOptions options_;
  std::vector<Program> programs_;
};

TEST_F(CriticalPath, OfProgramsWithoutTasksIsEmpty) {
  EXPECT_THAT(path_of(0, "", ""), IsEmpty());
}

TEST_F(CriticalPath, FollowsAMessageToItsSender) {
  model_.latency_ns = 3;
  const auto path = path_of(1,
                            "copy(x[0:10] -> y[0:10]) compute forward record=e0\n"
                            "send(x[0:7]) {group=0, peer=1, channel=0} comm comm wait=e0\n",
                            "copy(x[0:4] -> y[0:4]) compute forward\n"
                            "recv(-> y[0:7]) {group=0, peer=0, channel=0} comm comm record=e0\n"
                            "copy(y[0:7] -> x[0:7]) compute forward wait=e0\n");
  EXPECT_THAT(path, ElementsAre(PathTask{0, 0, 0, 10, 10, 0}, PathTask{0, 1, 10, 20, 10, 3},
                                PathTask{1, 2, 20, 27, 7, 0}));
}

TEST_F(CriticalPath, ACollectiveWaitsForItsLastRank) {
  for (const bool starts_on_arrival : {false, true}) {
    options_ = {.contention = false, .starts_on_arrival = starts_on_arrival};
    const auto path = path_of(0,
                              "copy(x[0:10] -> y[0:10]) compute forward\n"
                              "all_reduce(-> rw x[0:7]) {group=0} compute comm\n"
                              "copy(x[0:5] -> y[0:5]) compute forward\n",
                              "copy(x[0:30] -> y[0:30]) compute forward\n"
                              "all_reduce(-> rw x[0:7]) {group=0} compute comm\n");
    EXPECT_THAT(path, ElementsAre(PathTask{1, 0, 0, 30, 30, 0}, PathTask{1, 1, 30, 37, 7, 0},
                                  PathTask{0, 2, 37, 42, 5, 0}));
  }
}

// Both streams are ready at once; "second" has the higher priority, so "compute" waits for its
// unit.
TEST_F(CriticalPath, WaitsForAUnitOfTheDevice) {
  const auto path = path_of(0,
                            "copy(x[0:10] -> y[0:10]) compute forward\n"
                            "copy(x[10:30] -> y[10:30]) second forward\n",
                            "");
  EXPECT_THAT(path, ElementsAre(PathTask{0, 1, 0, 20, 20, 0}, PathTask{0, 0, 20, 30, 10, 0}));
}

TEST_F(CriticalPath, TellsWhatTasksThatRunAtOnceCost) {
  const std::string tasks =
      "linear(x[0:100] [100,1], w -> y[0:100] [100,1]) {has_bias=false, adds_bias=true} compute "
      "forward\n"
      "all_reduce(-> rw x[200:300]) {group=0} comm comm\n";
  EXPECT_THAT(path_of(0, tasks, tasks), ElementsAre(PathTask{0, 0, 0, 150, 100, 0}));
}

/// A simulated step as a graph: a node for each task of each rank, and one more for each meeting,
/// which lasts while the tasks of all of its ranks wait for it. Made of programs in full, without
/// the simulator's structures.
class StepGraph {
 public:
  using Node = std::pair<int, size_t>;  // rank and task

  StepGraph(const std::vector<Program>& programs, const RankPrograms& ranks,
            const SimResult& result)
      : programs_(programs), ranks_(ranks), result_(result) {
    for (int rank = 0; rank < static_cast<int>(programs.size()); ++rank) {
      add_rank(rank);
    }
    add_units();
  }

  TaskTimes times(Node node) const {
    const auto kind = result_.alike.kind_of[static_cast<size_t>(node.first)];
    return times_of(ranks_, result_, result_.ranks[kind])[node.second];
  }
  /// The nodes that must have ended before this one begins; of a call, those of all its ranks.
  std::set<Node> before(Node node) const {
    std::set<Node> nodes;
    for (const Node& member : members_of(node)) {
      const auto& own = own_before_.at(member);
      nodes.insert(own.begin(), own.end());
    }
    return nodes;
  }
  std::set<Node> members_of(Node node) const {
    const auto found = meeting_.find(node);
    return found == meeting_.end() ? std::set<Node>{node} : members_.at(found->second);
  }
  /// The longest path from the start of the step to the end of a node, by brute force.
  int64_t longest_to(Node node) {
    const Node first = *members_of(node).begin();
    if (const auto known = longest_.find(first); known != longest_.end()) {
      return known->second;
    }
    int64_t begin_ns = 0;
    for (const Node& member : members_of(node)) {
      begin_ns = std::max(begin_ns, times(member).start_ns);
    }
    int64_t longest_ns = 0;
    for (const Node& other : before(node)) {
      longest_ns = std::max(longest_ns, longest_to(other));
    }
    return longest_[first] = longest_ns + times(node).end_ns - begin_ns;
  }
  std::vector<Node> nodes() const {
    std::vector<Node> list;
    for (const auto& [node, before] : own_before_) {
      list.push_back(node);
    }
    return list;
  }

 private:
  /// What calls of one communication have in common.
  using Meeting = std::tuple<std::vector<int>, std::vector<int64_t>, int>;

  void add_rank(int rank) {
    const Program& program = programs_[static_cast<size_t>(rank)];
    std::map<uint32_t, size_t> last;  // by stream
    std::map<uint32_t, size_t> recorder;
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      if (program.tasks[i].record.valid()) {
        recorder[program.tasks[i].record.value] = i;
      }
    }
    std::map<std::pair<std::vector<int>, std::vector<int64_t>>, int> number;
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      const Task& task = program.tasks[i];
      std::set<Node>& before = own_before_[{rank, i}];
      if (const auto it = last.find(task.stream.value); it != last.end()) {
        before.insert({rank, it->second});
      }
      last[task.stream.value] = i;
      for (const EventId event : program.waits_of(task)) {
        before.insert({rank, recorder.at(event.value)});
      }
      const OpSpec& spec = program.spec(task);
      if (const auto group = group_of(program, spec)) {
        const std::vector<int>& members = program.groups[group->index()].ranks;
        std::vector<int64_t> ends;  // of a message: group, sender, receiver, channel
        if (spec.op == "send" || spec.op == "recv") {
          const auto own = static_cast<int64_t>(std::ranges::find(members, rank) - members.begin());
          const auto peer = std::get<int64_t>(*spec.find_attribute("peer"));
          ends = {spec.op == "send" ? own : peer, spec.op == "send" ? peer : own,
                  std::get<int64_t>(*spec.find_attribute("channel"))};
        }
        // Groups of equal ranks are different groups.
        ends.push_back(static_cast<int64_t>(group->value) << 32);
        const std::pair key{members, ends};
        const Meeting meeting{members, ends, number[key]++};
        meeting_[{rank, i}] = meeting;
        members_[meeting].insert({rank, i});
      }
    }
  }

  /// A unit's tasks, in the order in which they had it.
  void add_units() {
    std::map<std::pair<int, int>, std::vector<Node>> units;
    for (const auto& [node, before] : own_before_) {
      const Program& program = programs_[static_cast<size_t>(node.first)];
      const OpFamily family = family_of(program.spec(program.tasks[node.second]));
      if (computes_on_device(family)) {
        units[{node.first, 0}].push_back(node);
      }
    }
    for (auto& [unit, users] : units) {
      std::ranges::sort(users, [&](const Node& a, const Node& b) {
        return std::pair(times(a).start_ns, times(a).end_ns) <
               std::pair(times(b).start_ns, times(b).end_ns);
      });
      for (size_t i = 1; i < users.size(); ++i) {
        EXPECT_GE(times(users[i]).start_ns, times(users[i - 1]).end_ns);
        own_before_[users[i]].insert(users[i - 1]);
      }
    }
  }

  const std::vector<Program>& programs_;
  const RankPrograms& ranks_;
  const SimResult& result_;
  std::map<Node, std::set<Node>> own_before_;
  std::map<Node, Meeting> meeting_;
  std::map<Meeting, std::set<Node>> members_;
  std::map<Node, int64_t> longest_;
};

/// A rank of the first class may stand for others.
StepGraph::Node node_of(const SimResult& result, const PathTask& task) {
  return {result.ranks[task.rank].rank, task.task};
}

TEST(CriticalPathRandom, IsALongestPathAndFillsTheStep) {
  for (uint64_t seed = 1; seed <= thinned_count(60u, 5); ++seed) {
    for (const bool contention : {false, true}) {
      const std::vector<Program> programs = random_ranks(seed, {.num_streams = 4});
      const RankPrograms ranks = one_program_per_rank(programs);
      const auto model = make_analytic_model(small_cluster(4, seed % 2 == 0 ? 4 : 2));
      const MatchedPrograms matched(ranks, *model);
      const SimResult result = simulate(matched, *model, {.contention = contention});
      const std::vector<PathTask> path = critical_path(matched, *model, result);
      StepGraph graph(programs, ranks, result);
      int64_t now_ns = 0;
      for (size_t i = 0; i < path.size(); ++i) {
        const PathTask& task = path[i];
        ASSERT_EQ(task.begin_ns, now_ns) << "seed " << seed << " task " << i << " of the path";
        ASSERT_GT(task.end_ns, task.begin_ns);
        ASSERT_GE(task.alone_ns, task.latency_ns);
        ASSERT_GE(task.latency_ns, 0);
        ASSERT_LE(task.alone_ns, task.end_ns - task.begin_ns);
        ASSERT_TRUE(contention || task.alone_ns == task.end_ns - task.begin_ns);
        ASSERT_EQ(graph.times(node_of(result, task)).end_ns, task.end_ns);
        // What the one before ends lets this one begin: directly, or by tasks without length.
        std::set<StepGraph::Node> reached;
        std::vector<StepGraph::Node> open{node_of(result, task)};
        while (!open.empty()) {
          const StepGraph::Node node = open.back();
          open.pop_back();
          for (const StepGraph::Node& other : graph.before(node)) {
            if (graph.times(other).end_ns == task.begin_ns && reached.insert(other).second &&
                graph.times(other).start_ns == task.begin_ns) {
              open.push_back(other);
            }
          }
        }
        if (i > 0) {
          std::set<StepGraph::Node> members = graph.members_of(node_of(result, path[i - 1]));
          EXPECT_TRUE(std::ranges::any_of(
              members, [&](const StepGraph::Node& member) { return reached.contains(member); }))
              << "seed " << seed << " task " << i;
        }
        now_ns = task.end_ns;
      }
      ASSERT_EQ(now_ns, result.step_ns) << "seed " << seed;
      int64_t longest_ns = 0;
      for (const StepGraph::Node& node : graph.nodes()) {
        longest_ns = std::max(longest_ns, graph.longest_to(node));
      }
      EXPECT_EQ(longest_ns, result.step_ns) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace braid
