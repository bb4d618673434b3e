#include "ir/program.h"

#include <gtest/gtest.h>

#include "base/expect_error.h"
#include "ir/text.h"
#include "support/random_program.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A program with one stream and the buffers x f32 [4,2], y f32 [8] and n i32 [2].
class ProgramBuilderTest : public ::testing::Test {
 protected:
  static OpSpec copy_spec(Shape from, Shape to, DType dtype = DType::kF32) {
    return {"copy", {}, {{dtype, Access::kRead, from}, {dtype, Access::kWrite, to}}};
  }
  std::string error_of(const OpSpec& spec, std::vector<BufferRange> operands, StreamId on,
                       Label label = {}) {
    return message_of<InternalError>([&] { builder.add_task(spec, operands, on, label); });
  }

  ProgramBuilder builder{"step", 0, 2};
  StreamId stream = builder.add_stream({"compute", StreamKind::kCompute, 0});
  BufferId x = builder.add_buffer({"x", DType::kF32, {4, 2}});
  BufferId y = builder.add_buffer({"y", DType::kF32, {8}});
  BufferId n = builder.add_buffer({"n", DType::kI32, {2}});
};

TEST_F(ProgramBuilderTest, AddsTasksWithTheirOperands) {
  const std::vector<BufferRange> operands = {builder.whole(x), builder.whole(y)};
  const std::vector<BufferRange> parts = {{x, 2, 4}, {y, 0, 2}};
  Label label;
  label.site = builder.site("attention.qkv");
  builder.add_task(copy_spec({8}, {2, 4}), operands, stream, label);
  const TaskId second = builder.add_task(copy_spec({2}, {2}), parts, stream, label);
  EXPECT_EQ(second.value, 1u);
  const Program program = builder.take();
  ASSERT_EQ(program.tasks.size(), 2u);
  EXPECT_EQ(program.spec(program.tasks[1]), copy_spec({2}, {2}));
  EXPECT_TRUE(std::ranges::equal(program.operands_of(program.tasks[0]), operands));
  EXPECT_TRUE(std::ranges::equal(program.operands_of(program.tasks[1]), parts));
  EXPECT_EQ(program.sites, std::vector<std::string>{"attention.qkv"});
  EXPECT_TRUE(program.waits_of(program.tasks[1]).empty());
}

TEST_F(ProgramBuilderTest, RefusesOperandsThatDoNotFit) {
  Label label;
  label.layer = 3;
  label.microbatch = 1;
  label.site = builder.site("mlp.down");
  const auto spec = copy_spec({8}, {8});
  EXPECT_THAT(error_of(spec, {builder.whole(x), {y, 1, 9}}, stream, label),
              AllOf(HasSubstr("copy layers.3 mlp.down mb=1"), HasSubstr("operand 1"),
                    HasSubstr("[1:9] is not inside buffer y of 8 elements")));
  EXPECT_THAT(error_of(spec, {{x, -1, 7}, builder.whole(y)}, stream), HasSubstr("[-1:7]"));
  EXPECT_THAT(error_of(spec, {{x, 5, 4}, builder.whole(y)}, stream), HasSubstr("[5:4]"));
  EXPECT_THAT(error_of(copy_spec({2}, {2}), {{n, 0, 2}, {y, 0, 2}}, stream),
              HasSubstr("operand 0: dtype f32 is not that of buffer n, i32"));
  EXPECT_THAT(error_of(spec, {builder.whole(x), {y, 0, 7}}, stream),
              HasSubstr("shape [8] does not have the 7 elements of range [0:7] of buffer y"));
  EXPECT_THAT(error_of(spec, {builder.whole(x)}, stream), HasSubstr("1 operands"));
  EXPECT_THAT(error_of(spec, {builder.whole(x), {BufferId(size_t{9}), 0, 8}}, stream),
              HasSubstr("buffer #9 does not exist"));
  EXPECT_THAT(error_of(copy_spec({-2, -4}, {8}), {builder.whole(x), builder.whole(y)}, stream),
              HasSubstr("shape [-2,-4]"));
  EXPECT_TRUE(builder.program().tasks.empty());
}

TEST_F(ProgramBuilderTest, RefusesStreamsSitesAndGroupsThatDoNotExist) {
  const std::vector<BufferRange> operands = {builder.whole(x), builder.whole(y)};
  EXPECT_THAT(error_of(copy_spec({8}, {8}), operands, StreamId(size_t{1})),
              HasSubstr("stream #1 does not exist"));
  EXPECT_THAT(error_of(copy_spec({8}, {8}), operands, StreamId()), HasSubstr("stream"));
  Label label;
  label.site = SiteId(size_t{0});
  EXPECT_THAT(error_of(copy_spec({8}, {8}), operands, stream, label), HasSubstr("site #0"));
  EXPECT_THAT(message_of<InternalError>([&] {
                builder.add_group({"dp", GroupKind::kData, {0, 2}});
              }),
              HasSubstr("group dp: rank 2 is not one of 2 ranks"));
  EXPECT_THAT(message_of<InternalError>([&] {
                builder.add_group({"dp", GroupKind::kData, {}});
              }),
              HasSubstr("no ranks"));
  EXPECT_THAT(message_of<InternalError>([] { ProgramBuilder("step", 2, 2); }), HasSubstr("rank 2"));
}

TEST_F(ProgramBuilderTest, RefusesBuffersWithoutASize) {
  const auto error = [&](Shape shape) {
    return message_of<InternalError>([&] { builder.add_buffer({"b", DType::kF32, shape}); });
  };
  EXPECT_THAT(error({4, -1}), HasSubstr("buffer b: shape [4,-1]"));
  EXPECT_THAT(error({INT64_MAX, 2}), HasSubstr("too large"));
  EXPECT_THAT(error({0, INT64_MAX, INT64_MAX}), HasSubstr("too large"));
}

TEST(Program, ShapesAreValidUpToTheLimit) {
  EXPECT_TRUE(is_valid_shape({}));
  EXPECT_TRUE(is_valid_shape({0, 5}));
  EXPECT_TRUE(is_valid_shape({kMaxElems}));
  EXPECT_FALSE(is_valid_shape({kMaxElems, 2}));
  EXPECT_FALSE(is_valid_shape({-1}));
}

TEST(Program, EqualityLooksAtMeaningOnly) {
  const Program program = random_program(1, {.num_ranks = 2});
  EXPECT_EQ(program, program);
  Program renumbered = program;
  renumbered.specs = SpecTable();
  renumbered.specs.intern({"unused", {}, {}});
  for (Task& task : renumbered.tasks) {
    task.spec = renumbered.specs.intern(program.spec(task));
  }
  EXPECT_EQ(renumbered, program);

  const auto differs = [&](auto&& change) {
    Program changed = program;
    change(changed);
    return !(changed == program);
  };
  EXPECT_TRUE(differs([](Program& p) { p.name = "other"; }));
  EXPECT_TRUE(differs([](Program& p) { p.rank = 1; }));
  EXPECT_TRUE(differs([](Program& p) { p.num_ranks = 3; }));
  EXPECT_TRUE(differs([](Program& p) { p.num_events = 1; }));
  EXPECT_TRUE(differs([](Program& p) { p.buffers[0].role = BufferRole::kIo; }));
  EXPECT_TRUE(differs([](Program& p) { p.streams[0].priority = 1; }));
  EXPECT_TRUE(differs([](Program& p) { p.groups[1].ranks = {1, 0}; }));
  EXPECT_TRUE(differs([](Program& p) { p.operands[0].begin += 1; }));
  EXPECT_TRUE(differs([](Program& p) { p.tasks[3].label.layer += 1; }));
  EXPECT_TRUE(differs([](Program& p) { p.tasks[3].record = EventId(size_t{0}); }));
  EXPECT_TRUE(differs([](Program& p) { p.tasks.pop_back(); }));
  EXPECT_TRUE(differs([](Program& p) { p.sites[0] = "renamed"; }));
  EXPECT_TRUE(differs([](Program& p) {
    p.waits.emplace_back(size_t{0});
    p.tasks[3].num_waits = 1;
  }));
}

TEST(Program, ReordersTasksWithTheirOperandsAndDropsEvents) {
  Program program = random_program(2, {.num_tasks = 20});
  program.tasks[0].record = EventId(size_t{0});
  program.num_events = 1;
  std::vector<TaskId> order;
  for (size_t i = program.tasks.size(); i-- > 0;) {
    order.emplace_back(i);
  }
  const Program reversed = reorder_tasks(program, order);
  EXPECT_EQ(reversed.num_events, 0u);
  ASSERT_EQ(reversed.tasks.size(), program.tasks.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const Task& from = program.tasks[order[i].index()];
    const Task& to = reversed.tasks[i];
    EXPECT_EQ(reversed.spec(to), program.spec(from));
    EXPECT_TRUE(std::ranges::equal(reversed.operands_of(to), program.operands_of(from)));
    EXPECT_EQ(to.label, from.label);
    EXPECT_FALSE(to.record.valid());
  }
  clear_events(program);
  EXPECT_EQ(reorder_tasks(reversed, order), program);

  order[0] = order[1];
  EXPECT_THAT(message_of<InternalError>([&] { reorder_tasks(program, order); }),
              HasSubstr("twice"));
  order.pop_back();
  EXPECT_THAT(message_of<InternalError>([&] { reorder_tasks(program, order); }),
              HasSubstr("an order of 19 tasks for a program of 20"));
}

TEST(Program, SelectsSomeTasks) {
  const Program program = random_program(3, {.num_tasks = 10});
  const std::vector<TaskId> some = {TaskId(size_t{7}), TaskId(size_t{2})};
  const Program selected = select_tasks(program, some);
  ASSERT_EQ(selected.tasks.size(), 2u);
  EXPECT_EQ(selected.spec(selected.tasks[1]), program.spec(program.tasks[2]));
  EXPECT_THAT(message_of<InternalError>(
                  [&] { select_tasks(program, std::vector<TaskId>{TaskId(size_t{10})}); }),
              HasSubstr("task #10"));
}

TEST(Program, ClearsEvents) {
  Program program = random_program(4);
  const Program without = program;
  program.tasks[0].record = EventId(size_t{0});
  program.num_events = 1;
  program.waits.emplace_back(size_t{0});
  program.tasks[5].num_waits = 1;
  clear_events(program);
  EXPECT_EQ(program, without);
  EXPECT_TRUE(program.waits.empty());
}

TEST(Program, DescribesTasksByWhatApplies) {
  const Program program = parse_program(
      "program step rank=0 ranks=1 events=0\n"
      "stream compute kind=compute priority=0\n"
      "linear() compute forward mb=0 vs=1 layer=3 site=attention.qkv\n"
      "fill() compute optimizer\n");
  EXPECT_EQ(describe_task(program, TaskId(size_t{0})), "linear layers.3 attention.qkv mb=0 vs=1");
  EXPECT_EQ(describe_task(program, TaskId(size_t{1})), "fill");
  EXPECT_THROW(describe_task(program, TaskId(size_t{2})), InternalError);
}

TEST(Program, FindsTheGroupOfAnOp) {
  Program program;
  program.groups.push_back({"dp", GroupKind::kData, {0}});
  const auto group = [&](std::vector<Attribute> attributes) {
    return group_of(program, {"all_reduce", std::move(attributes), {}});
  };
  EXPECT_EQ(group({{"group", int64_t{0}}}), GroupId(size_t{0}));
  EXPECT_EQ(group({{"group", int64_t{1}}}), std::nullopt);
  EXPECT_EQ(group({{"group", int64_t{-1}}}), std::nullopt);
  EXPECT_EQ(group({{"group", 0.0}}), std::nullopt);
  EXPECT_EQ(group({}), std::nullopt);
}

TEST(Program, NamesOfEnumeratorsEndWithTheEnumeration) {
  EXPECT_EQ(role_name(BufferRole::kIo), "io");
  EXPECT_EQ(phase_name(Phase::kComm), "comm");
  EXPECT_EQ(stream_kind_name(StreamKind::kCopy), "copy");
  EXPECT_EQ(group_kind_name(GroupKind::kWorld), "world");
  EXPECT_EQ(lifetime_name(Lifetime::kStep), "step");
  EXPECT_EQ(placement_name(Placement::kHost), "host");
  EXPECT_THROW(phase_name(static_cast<Phase>(5)), InternalError);
}

}  // namespace
}  // namespace braid
