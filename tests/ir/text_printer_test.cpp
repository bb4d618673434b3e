#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/expect_error.h"
#include "ir/text.h"
#include "support/random_program.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TEST(TextPrinter, IsReadable) {
  ProgramBuilder builder("step", 0, 2);
  const StreamId compute = builder.add_stream({"compute", StreamKind::kCompute, 0});
  builder.add_group({"dp", GroupKind::kData, {0, 1}});
  const BufferId x = builder.add_buffer({"x", DType::kBF16, {4, 32}});
  const BufferId w = builder.add_buffer({"layers.0.qkv",
                                         DType::kBF16,
                                         {64},
                                         BufferRole::kParam,
                                         Lifetime::kPersistent,
                                         Placement::kHost});
  const BufferId y = builder.add_buffer({"y", DType::kF32, {4, 2}});
  const OpSpec spec{"linear",
                    {{"has_bias", false}, {"scale", 2.0}, {"method", std::string("ring")}},
                    {{DType::kBF16, Access::kRead, {4, 32}},
                     {DType::kBF16, Access::kRead, {2, 32}},
                     {DType::kF32, Access::kReadWrite, {4, 2}}}};
  Label label;
  label.phase = Phase::kForward;
  label.microbatch = 0;
  label.virtual_stage = 1;
  label.layer = 3;
  label.site = builder.site("attention.qkv");
  builder.add_task(spec, std::vector{builder.whole(x), builder.whole(w), builder.whole(y)}, compute,
                   label);
  const OpSpec part{
      "copy", {}, {{DType::kF32, Access::kRead, {3}}, {DType::kF32, Access::kWrite, {3, 1}}}};
  label = Label{};
  label.phase = Phase::kComm;
  builder.add_task(part, std::vector<BufferRange>{{y, 0, 3}, {y, 4, 7}}, compute, label);
  Program program = builder.take();
  program.num_events = 1;
  program.tasks[0].record = EventId(size_t{0});
  program.waits = {EventId(size_t{0}), EventId(size_t{0})};
  program.tasks[1].num_waits = 2;
  EXPECT_EQ(print_program(program),
            "program step rank=0 ranks=2 events=1\n"
            "stream compute kind=compute priority=0\n"
            "group dp kind=data ranks=0,1\n"
            "buffer x bf16 [4,32] activation step device\n"
            "buffer layers.0.qkv bf16 [64] param persistent host\n"
            "buffer y f32 [4,2] activation step device\n"
            "linear(x, layers.0.qkv [2,32] -> rw y) {has_bias=false, scale=2.0, method=\"ring\"} "
            "compute forward mb=0 vs=1 layer=3 site=attention.qkv record=e0\n"
            "copy(y[0:3] -> y[4:7] [3,1]) compute comm wait=e0,e0\n");
}

TEST(TextPrinter, WritesNumbersThatReadBackExactly) {
  const auto text = [](AttributeValue value) { return print_attribute_value(value); };
  EXPECT_EQ(text(1.0), "1.0");
  EXPECT_EQ(text(int64_t{1}), "1");
  EXPECT_EQ(text(-0.0), "-0.0");
  EXPECT_EQ(text(1e-5), "1e-05");
  EXPECT_EQ(text(0.1), "0.1");
  EXPECT_EQ(text(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(text(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(text(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(text(-std::nan("7")), "nan");
  EXPECT_EQ(text(INT64_MIN), "-9223372036854775808");
  EXPECT_EQ(text(true), "true");
  EXPECT_EQ(text(std::string("a \"b\"\n")), "\"a \\\"b\\\"\\u000A\"");
}

TEST(TextPrinter, NamesAmbiguousAndMissingThingsByIndex) {
  Program program;
  program.streams.resize(1);
  program.buffers = {{"x", DType::kF32, {4}}, {"x", DType::kF32, {4}}, {"rw", DType::kF32, {4}}};
  const OpSpec spec{"op", {}, std::vector<OperandSpec>(4, {DType::kF32, Access::kRead, {4}})};
  Task task;
  task.spec = program.specs.intern(spec);
  task.stream = StreamId(size_t{7});
  task.label.site = SiteId(size_t{5});
  program.tasks = {task};
  for (const size_t buffer : {0, 1, 2, 9}) {
    program.operands.push_back({BufferId(buffer), 0, 4});
  }
  EXPECT_THAT(print_program(program),
              HasSubstr("op(#0, #1, \"rw\", #9[0:4] f32 [4]) #7 forward site=#5\n"));
}

TEST(TextPrinter, RefusesTasksThatPointNowhere) {
  Program program = random_program(1);
  const auto error = [&](auto&& change) {
    Program changed = program;
    change(changed);
    return message_of<InternalError>([&] { print_program(changed); });
  };
  EXPECT_THAT(error([](Program& p) { p.tasks[1].spec = SpecId(); }), HasSubstr("spec"));
  EXPECT_THAT(error([](Program& p) { p.operands.pop_back(); }), HasSubstr("operands"));
  EXPECT_THAT(error([](Program& p) { p.tasks[1].operands_begin = UINT32_MAX; }),
              HasSubstr("operands"));
  EXPECT_THAT(error([](Program& p) { p.tasks[1].num_waits = 1; }), HasSubstr("waits"));
}

}  // namespace
}  // namespace braid
