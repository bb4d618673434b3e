#include "memory/memory_plan.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "memory/order_matrix.h"
#include "memory/programs.h"
#include "memory/quick_plan.h"
#include "memory/verify_plan.h"
#include "support/thinned.h"

namespace braid {
namespace {

MemoryPlan plan_one(const Program& program) {
  const Program* const programs[] = {&program};
  return plan_memory(programs);
}

std::string first_violation(const Program& program, const MemoryPlan& plan) {
  const std::vector<Violation> violations = verify_plan(program, plan, 0);
  return violations.empty() ? "" : violations.front().message;
}

double ratio_to_bound(const MemoryPlan& plan) {
  return static_cast<double>(plan.programs[0].arena_bytes) /
         static_cast<double>(plan.programs[0].max_live_bytes);
}

TEST(PlanMemory, ConflictsNowhereOnRandomPrograms) {
  for (uint64_t seed = 0; seed < thinned_count(2000u, 5); ++seed) {
    const Program program = random_small_program(seed);
    const MemoryPlan plan = plan_one(program);
    ASSERT_EQ(first_violation(program, plan), "") << "seed " << seed;
    ASSERT_GE(plan.programs[0].arena_bytes, plan.programs[0].max_live_bytes) << "seed " << seed;
    ASSERT_TRUE(OrderMatrix(program).is_conflict_free(program, plan.programs[0].offset_bytes))
        << "seed " << seed;
  }
}

TEST(PlanMemoryQuickly, IsAPlanThatIsNotSmaller) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Program program = random_small_program(seed);
    const Program* const programs[] = {&program};
    const MemoryPlan quick = plan_memory_quickly(programs);
    ASSERT_EQ(first_violation(program, quick), "") << "seed " << seed;
    ASSERT_GE(quick.peak_bytes(), plan_one(program).peak_bytes()) << "seed " << seed;
  }
}

TEST(PlanMemory, OneBufferTakesItsAlignedSize) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  writer.task(stream, {}, {writer.buffer(257)});
  const MemoryPlan plan = plan_one(writer.take());
  EXPECT_EQ(plan.step_bytes, 512);
  EXPECT_EQ(plan.programs[0].max_live_bytes, 512);
  EXPECT_EQ(plan.persistent_bytes, 0);
  EXPECT_EQ(plan.peak_bytes(), 512);
}

TEST(PlanMemory, AnEmptyProgramNeedsNothing) {
  const MemoryPlan plan = plan_one(ProgramWriter().take());
  EXPECT_EQ(plan.peak_bytes(), 0);
}

TEST(PlanMemory, TheBoundIsTheExactPeakOfAChain) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  BufferId last = writer.buffer(1000);
  writer.task(stream, {}, {last});
  for (int i = 0; i < 50; ++i) {
    const BufferId next = writer.buffer(1000);
    writer.task(stream, {last}, {next});
    last = next;
  }
  const MemoryPlan plan = plan_one(writer.take());
  EXPECT_EQ(plan.programs[0].max_live_bytes, 2048);
  EXPECT_EQ(plan.step_bytes, 2048);
}

TEST(PlanMemory, KeepsWhatASlowStreamStillReads) {
  ProgramWriter writer;
  const StreamId compute = writer.stream(StreamKind::kCompute);
  const StreamId comm = writer.stream(StreamKind::kComm);
  for (int i = 0; i < 3; ++i) {  // sends that nobody waits for
    const BufferId buffer = writer.buffer(1000);
    writer.task(compute, {}, {buffer});
    writer.task(comm, {buffer}, {});
  }
  const MemoryPlan plan = plan_one(writer.take());
  EXPECT_EQ(plan.step_bytes, 3 * 1024);
  EXPECT_EQ(plan.programs[0].max_live_bytes, 3 * 1024);
}

TEST(PlanMemory, ReportsThePeakByRole) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  const BufferId weight = writer.buffer(256, BufferRole::kParam, Lifetime::kPersistent, "w");
  const BufferId activation = writer.buffer(512);
  const BufferId small = writer.buffer(256, BufferRole::kScratch);
  const BufferId large = writer.buffer(2048, BufferRole::kScratch);
  writer.task(stream, {weight}, {small});
  writer.task(stream, {weight}, {activation, large});
  const MemoryPlan plan = plan_one(writer.take());
  EXPECT_EQ(plan.persistent_by_role.at(BufferRole::kParam), 256);
  const auto& by_role = plan.programs[0].peak_by_role;
  EXPECT_EQ(by_role.size(), 2u);
  EXPECT_EQ(by_role.at(BufferRole::kActivation), 512);
  EXPECT_EQ(by_role.at(BufferRole::kScratch), 2048);
}

Program program_with_weight(int64_t bytes, int64_t scratch_bytes) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  const BufferId own = writer.buffer(300, BufferRole::kIo, Lifetime::kPersistent,
                                     fmt::format("own{}", scratch_bytes));
  const BufferId weight = writer.buffer(bytes, BufferRole::kParam, Lifetime::kPersistent, "weight");
  writer.task(stream, {weight, own}, {writer.buffer(scratch_bytes)});
  return writer.take();
}

TEST(PlanMemory, ProgramsShareWeightsByNameAndStepBytesInTime) {
  const Program train = program_with_weight(1000, 5000);
  const Program evaluate = program_with_weight(1000, 3000);
  const Program* const programs[] = {&train, &evaluate};
  const MemoryPlan plan = plan_memory(programs);
  EXPECT_EQ(plan.persistent_bytes, 1024 + 2 * 512);
  EXPECT_EQ(plan.step_bytes, 5120);
  EXPECT_EQ(plan.programs[0].offset_bytes[1], plan.programs[1].offset_bytes[1]);
  EXPECT_EQ(plan.programs[0].offset_bytes[1], plan.persistent_offset_bytes.at("weight"));
  EXPECT_NE(plan.programs[0].offset_bytes[0], plan.programs[1].offset_bytes[0]);
  EXPECT_TRUE(verify_plan(train, plan, 0).empty());
  EXPECT_TRUE(verify_plan(evaluate, plan, 1).empty());
}

TEST(PlanMemory, ProgramsShareTheHostBytesInTime) {
  Program train = program_with_weight(1000, 5000);
  Program evaluate = program_with_weight(1000, 3000);
  train.buffers[2].placement = evaluate.buffers[2].placement = Placement::kHost;
  const Program* const programs[] = {&train, &evaluate};
  const MemoryPlan plan = plan_memory(programs);
  EXPECT_EQ(plan.step_bytes, 0);
  EXPECT_EQ(plan.host_bytes, 5120);
}

TEST(PlanMemory, RefusesTwoSizesOfOneName) {
  const Program train = program_with_weight(1000, 1);
  const Program evaluate = program_with_weight(1001, 2);
  const Program* const programs[] = {&train, &evaluate};
  EXPECT_EQ(message_of<InternalError>([&] { plan_memory(programs); }),
            "persistent buffer weight is u8[1000] in one program and u8[1001] in another");
}

TEST(PlanMemory, RefusesPersistentBuffersOnTheHost) {
  ProgramWriter writer;
  writer.buffer(1, BufferRole::kParam, Lifetime::kPersistent, "w");
  Program program = writer.take();
  program.buffers[0].placement = Placement::kHost;
  EXPECT_EQ(message_of<InternalError>([&] { plan_one(program); }),
            "persistent buffer w is to lie on the host: only step buffers may");
}

TEST(PlanMemory, StepBuffersOnTheHostTakeTurnsInAnArenaOfTheirOwn) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  const BufferId on_device = writer.buffer(1000);
  const BufferId first = writer.buffer(3000);
  const BufferId second = writer.buffer(2000);
  const BufferId beside = writer.buffer(300);
  writer.task(stream, {}, {on_device, first});
  writer.task(stream, {on_device, first}, {});
  writer.task(stream, {}, {on_device, second, beside});
  Program program = writer.take();
  for (const BufferId id : {first, second, beside}) {
    program.buffers[id.index()].placement = Placement::kHost;
  }
  const MemoryPlan plan = plan_one(program);
  EXPECT_EQ(plan.step_bytes, 1024);
  EXPECT_EQ(plan.peak_bytes(), 1024);
  EXPECT_EQ(plan.host_bytes, 3072);  // second and beside in the bytes of first
  EXPECT_EQ(plan.programs[0].host_arena_bytes, 3072);
  EXPECT_EQ(plan.programs[0].host_max_live_bytes, 3072);
  EXPECT_EQ(plan.programs[0].peak_by_role.at(BufferRole::kActivation), 1024);
  EXPECT_EQ(first_violation(program, plan), "");
}

TEST(PlanMemory, ConflictsInNeitherMemoryOnRandomPrograms) {
  int64_t host_bytes = 0;
  for (uint64_t seed = 0; seed < thinned_count(1000u, 5); ++seed) {
    const Program program = with_host_buffers(random_small_program(seed), seed);
    const MemoryPlan plan = plan_one(program);
    ASSERT_EQ(first_violation(program, plan), "") << "seed " << seed;
    ASSERT_TRUE(OrderMatrix(program).is_conflict_free(program, plan.programs[0].offset_bytes))
        << "seed " << seed;
    ASSERT_GE(plan.host_bytes, plan.programs[0].host_max_live_bytes) << "seed " << seed;
    host_bytes += plan.host_bytes;
  }
  EXPECT_GT(host_bytes, 0);
}

class TransformerPlans : public ::testing::TestWithParam<TransformerOptions> {};

TEST_P(TransformerPlans, StayWithinFivePercentOfTheBound) {
  const Program program = TransformerStep(GetParam()).write();
  const MemoryPlan plan = plan_one(program);
  EXPECT_EQ(first_violation(program, plan), "");
  EXPECT_LE(ratio_to_bound(plan), 1.05);
}

std::vector<TransformerOptions> transformer_variants() {
  std::vector<TransformerOptions> variants;
  for (int64_t in_flight = 1; in_flight <= 4; in_flight += 3) {
    for (const bool overlaps : {false, true}) {
      TransformerOptions options;
      options.in_flight = in_flight;
      options.microbatches = 8;
      options.gather_parameters = overlaps;
      options.reduce_gradients = overlaps;
      variants.push_back(options);
      options.layers = 32;
      options.width = 1024;
      options.ffn = 2816;
      options.tokens = 2048;
      options.vocabulary = 32000;
      variants.push_back(options);
    }
  }
  TransformerOptions large;  // 55,000 tasks: too many for the quadratic heuristics
  large.layers = 126;
  large.microbatches = 16;
  large.in_flight = 4;
  large.gather_parameters = true;
  large.reduce_gradients = true;
  variants.push_back(large);
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Steps, TransformerPlans,
                         ::testing::ValuesIn(thinned(transformer_variants(), 3)),
                         [](const auto& variant) {
                           const TransformerOptions& options = variant.param;
                           return fmt::format("layers{}in_flight{}{}", options.layers,
                                              options.in_flight,
                                              options.gather_parameters ? "overlapped" : "plain");
                         });

}  // namespace
}  // namespace braid
