#include "parallel/expand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.h"
#include "ops/collectives.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// A program of one rank with two groups, and the graph x -> all_reduce over "tensor" -> copied
/// over "context".
class GroupExpansion : public ::testing::Test {
 protected:
  GroupExpansion() {
    stream_ = program_.add_stream({.name = "compute", .kind = StreamKind::kCompute});
    data_ = program_.add_group({.name = "data", .kind = GroupKind::kData, .ranks = {0}});
    tensor_ = program_.add_group({.name = "tensor", .kind = GroupKind::kTensor, .ranks = {0, 1}});
    GraphBuilder builder(graph_);
    const ValueId x = builder.named_value(
        {.name = "x", .dtype = DType::kF32, .shape = {4}, .kind = ValueKind::kActivation});
    identity(builder, all_reduce(builder, x, "tensor", "sum"), "context", "copied");
  }

  void expand() {
    StageExpander expander(program_, graph_, layout_, bindings_, place_);
    expander.add_forward(0, stream_);
  }

  ProgramBuilder program_{"step", 0, 2};
  StreamId stream_;
  GroupId data_;
  GroupId tensor_;
  StageGraph graph_;
  ParameterLayout layout_;
  StageExpander::Bindings bindings_;
  StageExpander::Place place_;
};

TEST_F(GroupExpansion, NamesGroupsOfTheProgram) {
  place_.groups = {tensor_, data_};
  expand();
  const Program& program = program_.program();
  ASSERT_EQ(program.tasks.size(), 2u);
  EXPECT_EQ(group_of(program, program.spec(program.tasks[0])), tensor_);
  EXPECT_EQ(group_of(program, program.spec(program.tasks[1])), data_);
}

TEST_F(GroupExpansion, RefusesAGroupWithoutRanks) {
  place_.groups = {tensor_};
  EXPECT_THAT(message_of<InternalError>([&] { expand(); }),
              HasSubstr("op identity at copied: no group of the program for group 1"));
}

}  // namespace
}  // namespace braid
