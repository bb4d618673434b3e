#include "passes/analysis/rank_independent.h"

#include <gtest/gtest.h>

#include "sim/analytic_model.h"
#include "support/step_program.h"

namespace braid {
namespace {

/// y = x w^T (+ bias), row-parallel: tensor rank 0 adds the bias.
OpSpec product(bool adds_bias) {
  const auto operand = [](Access access, Shape shape) {
    return OperandSpec{.dtype = DType::kF32, .access = access, .shape = shape};
  };
  return {
      .op = "linear",
      .attributes = {{"has_bias", true}, {"adds_bias", adds_bias}},
      .operands = {operand(Access::kRead, Shape{48, 32}), operand(Access::kRead, Shape{4096, 32}),
                   operand(Access::kRead, Shape{4096}), operand(Access::kWrite, Shape{48, 4096})}};
}

TEST(RankIndependent, AProductWhoseBiasAnotherRankAddsIsPricedAsThatRanks) {
  EXPECT_EQ(at_first_rank(product(false)), product(true));
  EXPECT_EQ(at_first_rank(product(true)), product(true));
}

TEST(RankIndependent, GroupsBeginAtRank0) {
  StepProgram builder(13, 16);
  const StreamId comm = builder.stream("comm", StreamKind::kComm);
  builder.all_reduce(comm, builder.group("tensor", {12, 13, 14, 15}), builder.persistent("x", 8));
  const Program moved = at_first_ranks(builder.finish());
  EXPECT_EQ(moved.rank, 0);
  EXPECT_EQ(moved.groups[0].ranks, (std::vector<int>{0, 1, 2, 3}));
}

TEST(RankIndependent, CommunicationTakesTheSameOnAllRanksOfAGroup) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  const auto ns_of = [&](int rank) {
    StepProgram builder(rank, 16);
    const StreamId comm = builder.stream("comm", StreamKind::kComm);
    builder.all_reduce(comm, builder.group("tensor", {8, 9, 10, 11}),
                       builder.persistent("x", int64_t{1} << 20));
    return rank_independent_ns(*model, at_first_ranks(builder.finish()), TaskId(size_t{0}));
  };
  EXPECT_GT(ns_of(8), 0);
  EXPECT_EQ(ns_of(8), ns_of(11));
}

}  // namespace
}  // namespace braid
