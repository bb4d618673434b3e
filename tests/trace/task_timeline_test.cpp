#include "trace/task_timeline.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "ir/text.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/op.h"
#include "support/step_program.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kNoTask = TimelineKernel::kNoTask;

Program three_tasks() {
  StepProgram builder;
  const StreamId comm = builder.stream("comm", StreamKind::kComm);
  const StreamId compute = builder.stream("compute");
  const BufferId a = builder.step("a", 6);
  const BufferId out = builder.persistent("out", 6);
  Label label;
  label.site = builder.site("head");
  builder.fill(compute, a, 1, label);
  builder.copy(comm, a, out);
  builder.fill(compute, a, 2, label);
  return builder.finish();
}

TEST(TaskTimeline, ListsStreamsOneAfterTheOther) {
  const TaskTimes times[] = {{10, 20}, {21, 30}, {31, 40}};
  const RankTimeline timeline = task_timeline(three_tasks(), times);
  ASSERT_EQ(timeline.tasks.size(), 3u);
  EXPECT_EQ(timeline.tasks[0].start_ns, 21);  // comm is the first stream
  EXPECT_EQ(timeline.tasks[1].start_ns, 10);
  EXPECT_EQ(timeline.tasks[2].start_ns, 31);
  EXPECT_EQ(timeline.tasks[0].task, 1u);  // positions in the program
  EXPECT_EQ(timeline.tasks[1].task, 0u);
  EXPECT_THAT(timeline.names, ElementsAre("copy", "fill head"));
  EXPECT_EQ(timeline.tasks[1].name, timeline.tasks[2].name);
}

TEST(TaskTimeline, KnowsWhatEachTaskCosts) {
  const TaskTimes times[] = {{10, 20}, {21, 30}, {31, 40}};
  const Program program = three_tasks();
  const RankTimeline timeline = task_timeline(program, times);
  ASSERT_EQ(timeline.ops.size(), 3u);  // fills of different values are different specs
  const TimelineOp& copy = timeline.ops[timeline.tasks[0].op];
  EXPECT_EQ(copy.name, "copy");
  EXPECT_EQ(copy.bytes, 2 * 6 * 4);
  EXPECT_EQ(copy.flops, 0);
  EXPECT_EQ(timeline.ops[timeline.tasks[2].op].bytes, 6 * 4);
}

// A room for 12 rows, of which 6 come with equal loads.
TEST(TaskTimeline, CostsOfExpertsAreThoseOfTheRowsThatCome) {
  const Program program = parse_program(
      "program step rank=0 ranks=2 events=0\n"
      "stream compute kind=compute priority=0\n"
      "group experts kind=expert ranks=0,1\n"
      "buffer x bf16 [6,4] activation persistent device\n"
      "buffer weights f32 [6] activation persistent device\n"
      "buffer offsets_of_all i32 [6] activation persistent device\n"
      "buffer y bf16 [12,4] activation persistent device\n"
      "buffer y_weights f32 [12] activation persistent device\n"
      "buffer offsets i32 [2] activation persistent device\n"
      "buffer w bf16 [5,4] param persistent device\n"
      "buffer z bf16 [12,5] activation persistent device\n"
      "dispatch_rows(x, weights, offsets_of_all -> y, y_weights, offsets) {group=0, experts=2, "
      "copies=1, has_weights=true, drops=false} compute comm\n"
      "grouped_linear(y, w, offsets -> z) compute forward\n");
  const TaskTimes times[] = {{10, 20}, {21, 30}};
  const RankTimeline timeline = task_timeline(program, times);
  EXPECT_EQ(timeline.ops[timeline.tasks[1].op].name, "grouped_linear");
  EXPECT_EQ(timeline.ops[timeline.tasks[1].op].flops, 2 * 6 * 4 * 5);
}

TEST(TaskTimeline, KernelsFollowTheirTasks) {
  const TaskTimes times[] = {{10, 20}, {}, {31, 40}};  // the copy did not run
  const RankTimeline timeline = task_timeline(three_tasks(), times,
                                              {{.task = 0, .start_ns = 10, .end_ns = 20},
                                               {.task = 1, .start_ns = 12, .end_ns = 13},
                                               {.task = 2, .start_ns = 31, .end_ns = 40},
                                               {.task = kNoTask, .start_ns = 41, .end_ns = 42}});
  ASSERT_EQ(timeline.tasks.size(), 2u);
  std::vector<uint32_t> tasks;
  for (const TimelineKernel& kernel : timeline.kernels) {
    tasks.push_back(kernel.task);
  }
  EXPECT_THAT(tasks, ElementsAre(0, kNoTask, 1, kNoTask));
}

/// One task of every communicating form on 8 ranks, and an identity.
Program communicating_program() {
  ProgramBuilder builder("step", 0, 8);
  const StreamId comm = builder.add_stream({"comm", StreamKind::kComm, 0});
  builder.add_group({"tensor", GroupKind::kTensor, {0, 1, 2, 3, 4, 5, 6, 7}});
  const BufferId small = builder.add_buffer({"small", DType::kBF16, {4}});
  const BufferId large = builder.add_buffer({"large", DType::kBF16, {32}});
  const auto add = [&](const char* op, std::vector<std::pair<BufferId, Access>> operands,
                       std::vector<Attribute> more = {}) {
    OpSpec spec{op, {{"group", int64_t{0}}}, {}};
    spec.attributes.insert(spec.attributes.end(), more.begin(), more.end());
    std::vector<BufferRange> ranges;
    for (const auto& [buffer, access] : operands) {
      ranges.push_back(builder.whole(buffer));
      spec.operands.push_back({DType::kBF16, access, {ranges.back().end}});
    }
    builder.add_task(spec, ranges, comm, {.phase = Phase::kComm});
  };
  const std::vector<Attribute> end{{"peer", int64_t{1}}, {"channel", int64_t{0}}};
  add("all_reduce", {{large, Access::kReadWrite}});
  add("all_gather", {{small, Access::kRead}, {large, Access::kWrite}});
  add("reduce_scatter", {{large, Access::kRead}, {small, Access::kWrite}});
  add("send", {{small, Access::kRead}}, end);
  add("recv", {{small, Access::kWrite}}, end);
  add("identity", {{small, Access::kRead}, {small, Access::kWrite}});
  return builder.take();
}

// The larger operand, as a simulator counts; identity only names a group.
TEST(TaskTimeline, CountsTheBytesOfCommunication) {
  const std::vector<TaskTimes> times(6, {1, 2});
  const RankTimeline timeline = task_timeline(communicating_program(), times);
  std::vector<int64_t> bytes;
  for (const TimelineTask& task : timeline.tasks) {
    EXPECT_EQ(task.communication, task.bytes > 0);
    EXPECT_EQ(task.group, task.communication ? GroupKind::kTensor : GroupKind::kWorld);
    bytes.push_back(task.bytes);
  }
  EXPECT_THAT(bytes, ElementsAre(64, 64, 64, 8, 8, 0));
}

TEST(TaskTimeline, RefusesCommunicationInNoGroup) {
  Program program = communicating_program();
  program.groups.clear();
  EXPECT_THAT(message_of<InternalError>([&] {
                task_timeline(program, std::vector<TaskTimes>(6, {1, 2}));
              }),
              ::testing::HasSubstr("all_reduce communicates in none of the 0 groups"));
}

TEST(TaskTimeline, RefusesTimesOfAnotherProgram) {
  const TaskTimes times[] = {{10, 20}};
  EXPECT_THAT(message_of<InternalError>([&] { task_timeline(three_tasks(), times); }),
              ::testing::HasSubstr("has 3 tasks, but times of 1"));
}

TEST(TaskTimeline, CommunicationIsNumberedInTheSequenceThatItMeetsOthersIn) {
  ProgramBuilder builder("step", 1, 4);
  const StreamId comm = builder.add_stream({.name = "comm", .kind = StreamKind::kComm});
  builder.add_group({"pipeline", GroupKind::kPipeline, {1, 3}});
  builder.add_group({"tensor", GroupKind::kTensor, {0, 1}});
  builder.add_group({"alone", GroupKind::kData, {1}});
  const BufferRange range = builder.whole(builder.add_buffer(
      {.name = "b", .dtype = DType::kF32, .shape = {8}, .lifetime = Lifetime::kPersistent}));
  const auto add = [&](const char* op, std::vector<Attribute> attributes, Access access) {
    builder.add_task({op, std::move(attributes), {{DType::kF32, access, {8}}}}, {&range, 1}, comm,
                     {.phase = Phase::kComm});
  };
  const auto message = [](int64_t channel) {
    return to_attributes(MessageAttributes{.group = 0, .peer = 1, .channel = channel});
  };
  add("all_reduce", {{"group", int64_t{1}}}, Access::kReadWrite);
  add("send", message(0), Access::kRead);
  add("recv", message(0), Access::kWrite);
  add("all_reduce", {{"group", int64_t{2}}}, Access::kReadWrite);
  add("send", message(2), Access::kRead);
  add("all_reduce", {{"group", int64_t{1}}}, Access::kReadWrite);
  const std::vector<TaskTimes> times(6, {0, 1});
  const RankTimeline timeline = task_timeline(builder.take(), times);
  std::vector<std::string> places;
  for (const TimelineTask& task : timeline.tasks) {
    places.push_back(
        task.sequence == TimelineTask::kNoSequence
            ? "none"
            : fmt::format("{} #{}", timeline.sequences.at(task.sequence).name, task.call));
  }
  EXPECT_THAT(
      places,
      ElementsAre("tensor of ranks 0, 1 #0", "pipeline messages of ranks 1, 3, channel 0 #0",
                  "pipeline messages of ranks 3, 1, channel 0 #0", "none",
                  "pipeline messages of ranks 1, 3, channel 2 #0", "tensor of ranks 0, 1 #1"));
  EXPECT_TRUE(timeline.sequences[1].messages);
  EXPECT_THAT(timeline.sequences[2].ranks, ElementsAre(3, 1));
}

}  // namespace
}  // namespace braid
