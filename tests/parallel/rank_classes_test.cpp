#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/rank_faults.h"
#include "support/random_ranks.h"
#include "support/reference_run.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(RankClasses, AcceptsRandomProgramsThatFitTogether) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const RandomRanksOptions options{.num_ranks = 1 + static_cast<int>(seed % 6),
                                     .num_streams = 1 + static_cast<int>(seed % 4)};
    const std::vector<Program> programs = random_ranks(seed, options);
    ASSERT_THAT(faults_of(programs, {.one_order_of_collectives = true}), ::testing::IsEmpty())
        << "seed " << seed;
    ASSERT_TRUE(ReferenceRun(programs).run()) << "seed " << seed;
  }
}

TEST(RankClasses, FindsExactlyTheDeadlocksOfRandomPrograms) {
  int deadlocks = 0;
  constexpr int kPrograms = 150;
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    const std::vector<Program> programs =
        random_ranks(seed, {.num_ranks = 3, .num_operations = 12, .scramble = true});
    const std::vector<std::string> faults = faults_of(programs);
    const bool ends = ReferenceRun(programs).run();
    ASSERT_EQ(faults.empty(), ends) << "seed " << seed << ": " << ::testing::PrintToString(faults);
    if (!ends) {
      ++deadlocks;
      ASSERT_THAT(faults, ::testing::ElementsAre(AllOf(StartsWith("deadlock: rank "),
                                                       ::testing::EndsWith("; and so round"))));
    }
  }
  EXPECT_GT(deadlocks, kPrograms / 10);
  EXPECT_LT(deadlocks, kPrograms * 9 / 10);
}

Program without_task(const Program& program, size_t task) {
  Program changed = program;
  changed.tasks.erase(changed.tasks.begin() + static_cast<int64_t>(task));
  return changed;
}

TEST(RankClasses, FindsAnyTaskThatIsLeftOut) {
  int checked = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::vector<Program> programs =
        random_ranks(seed, {.num_ranks = 3, .num_operations = 20});
    for (size_t task = 0; task < programs[1].tasks.size(); ++task) {
      const auto group = group_of(programs[1], programs[1].spec(programs[1].tasks[task]));
      if (!group || programs[1].groups[group->index()].ranks.size() == 1) {
        continue;
      }
      std::vector<Program> changed = programs;
      changed[1] = without_task(programs[1], task);
      const std::vector<std::string> faults = faults_of(changed);
      ASSERT_FALSE(faults.empty()) << "seed " << seed << ", task " << task;
      ASSERT_THAT(faults.front(), HasSubstr("rank 1"));
      ++checked;
    }
  }
  EXPECT_GT(checked, 100);
}

// Programs that several ranks share.

/// `copies` of each program side by side: rank r of copy c is c * programs.size() + r.
struct Replicated {
  std::vector<Program> shared;    // with an all-reduce over all copies in front
  std::vector<Program> unshared;  // one per rank
  RankPrograms ranks;
};

Replicated replicate(const std::vector<Program>& programs, int copies, bool reverse_one_copy) {
  const int num_ranks = static_cast<int>(programs.size());
  const auto place = [=](int copy, int rank) { return copy * num_ranks + rank; };
  Replicated result;
  result.shared = programs;
  for (Program& program : result.shared) {
    program.num_ranks = copies * num_ranks;
    Group data{.name = "data", .ranks = {}};
    for (int copy = 0; copy < copies; ++copy) {
      data.ranks.push_back(place(copy, program.rank));
    }
    const OpSpec spec{.op = "all_reduce",
                      .attributes = {{"group", static_cast<int64_t>(program.groups.size())}},
                      .operands = {{DType::kF32, Access::kReadWrite, {4}}}};
    Task task{.spec = program.specs.intern(spec),
              .stream = StreamId(size_t{0}),
              .operands_begin = static_cast<uint32_t>(program.operands.size())};
    program.operands.push_back({BufferId(size_t{0}), 0, 4});
    program.tasks.insert(program.tasks.begin(), task);
    program.groups.push_back(data);
  }
  for (int rank = 0; rank < copies * num_ranks; ++rank) {
    Program program = result.shared[static_cast<size_t>(rank % num_ranks)];
    program.rank = rank;
    const int copy = rank / num_ranks;
    for (size_t group = 0; group + 1 < program.groups.size(); ++group) {
      for (int& member : program.groups[group].ranks) {
        member = place(copy, member);
      }
    }
    if (reverse_one_copy && copy == 1) {
      std::reverse(program.groups[0].ranks.begin(), program.groups[0].ranks.end());
    }
    result.unshared.push_back(std::move(program));
  }
  for (const Program& program : result.shared) {
    result.ranks.programs.push_back(&program);
  }
  for (int rank = 0; rank < copies * num_ranks; ++rank) {
    result.ranks.program_of.push_back(static_cast<uint32_t>(rank % num_ranks));
  }
  return result;
}

TEST(RankClasses, SharedProgramsAreJudgedAsProgramsOfTheirOwn) {
  int deadlocks = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const std::vector<Program> programs =
        random_ranks(seed, {.num_ranks = 3, .num_operations = 12, .scramble = true});
    // In one copy a group may stand in reverse order: that copy is not like the others then.
    Replicated all = replicate(programs, 3, /*reverse_one_copy=*/seed % 2 == 0);
    all.ranks.ranks_of_group = [&](int rank, GroupId group) {
      return all.unshared[static_cast<size_t>(rank)].groups[group.index()].ranks;
    };
    if (seed % 4 > 1) {  // groups are listed once
      all.ranks.first_of_group = [&](int rank, GroupId group) {
        return all.ranks.ranks_of_group(rank, group).front();
      };
    }
    const std::vector<std::string> shared = faults_of(all.ranks);
    const std::vector<std::string> own = faults_of(all.unshared);
    ASSERT_EQ(shared.empty(), own.empty())
        << "seed " << seed << ::testing::PrintToString(shared) << ::testing::PrintToString(own);
    if (seed % 2 == 1) {  // messages may go astray in the other case
      ASSERT_EQ(own.empty(), ReferenceRun(all.unshared).run()) << "seed " << seed;
    }
    deadlocks += own.empty() ? 0 : 1;
  }
  EXPECT_GT(deadlocks, 5);
  EXPECT_LT(deadlocks, 55);
}

TEST(RankClasses, FindsTheOneCopyThatIsDifferent) {
  // Ranks 0,1 and 2,3 are pairs in which the even one sends. In the second pair the order of the
  // group is the other way round, so both ranks of program 0 think that they send to themselves.
  Pair pair;
  pair[0].send({.peer = 1}, 0);
  pair[1].recv({.peer = 0}, 0);
  std::vector<Program> programs = pair.take();
  for (Program& program : programs) {
    program.num_ranks = 4;
  }
  RankPrograms ranks{.programs = {&programs[0], &programs[1]},
                     .program_of = {0, 1, 0, 1},
                     .ranks_of_group = [](int rank, GroupId) {
                       return rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
                     }};
  EXPECT_TRUE(faults_of(ranks).empty());
  ranks.ranks_of_group = [](int rank, GroupId) {
    return rank < 2 ? std::vector{0, 1} : std::vector{3, 2};
  };
  EXPECT_THAT(faults_of(ranks), ::testing::Contains(HasSubstr("from rank 2 to rank 2")));
  ranks.ranks_of_group = [](int rank, GroupId) {
    return rank == 2 ? std::vector{0, 2} : rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
  };
  EXPECT_THAT(faults_of(ranks).front(), HasSubstr("group pair has ranks"));
}

TEST(RankClasses, ARankThatIsNotInTheGroupThatItNamesIsFound) {
  Pair pair;
  pair[0].send({.peer = 1}, 0);
  pair[1].recv({.peer = 0}, 0);
  std::vector<Program> programs = pair.take();
  for (Program& program : programs) {
    program.num_ranks = 4;
  }
  RankPrograms ranks{.programs = {&programs[0], &programs[1]},
                     .program_of = {0, 1, 0, 1},
                     .ranks_of_group =
                         [](int rank, GroupId) {
                           return rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
                         },
                     .first_of_group = [](int rank, GroupId) { return rank < 2 ? 0 : 2; }};
  EXPECT_TRUE(faults_of(ranks).empty());
  ranks.first_of_group = [](int rank, GroupId) { return rank == 2 ? 2 : 0; };
  EXPECT_THAT(faults_of(ranks), ::testing::Contains(HasSubstr("3 ranks say that they are in it")));
}

}  // namespace
}  // namespace braid
