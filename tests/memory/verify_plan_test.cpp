#include "memory/verify_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory/order_matrix.h"
#include "memory/programs.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// Two buffers in turn on one stream, then a third that a second stream reads late.
struct Example {
  Example() {
    ProgramWriter writer;
    const StreamId compute = writer.stream(StreamKind::kCompute);
    const StreamId comm = writer.stream(StreamKind::kComm);
    const BufferId a = writer.buffer(256);
    const BufferId b = writer.buffer(256);
    const BufferId c = writer.buffer(256);
    const BufferId d = writer.buffer(256);
    writer.task(compute, {}, {a});
    writer.task(compute, {}, {b});
    writer.task(compute, {}, {c});
    writer.task(comm, {c}, {});
    writer.task(compute, {}, {d});
    program = writer.take();
    plan.step_bytes = 1024;
    plan.programs.resize(1);
    plan.programs[0].arena_bytes = 1024;
  }

  std::string verdict(std::vector<int64_t> offsets) {
    plan.programs[0].offset_bytes = std::move(offsets);
    const std::vector<Violation> violations = verify_plan(program, plan, 0);
    return violations.empty() ? "good" : violations.front().message;
  }

  Program program;
  MemoryPlan plan;
};

TEST(VerifyPlan, AcceptsTurns) {
  EXPECT_EQ(Example().verdict({0, 0, 0, 256}), "good");
  EXPECT_EQ(Example().verdict({0, 0, 256, 0}), "good");
}

TEST(VerifyPlan, SeesThatAnotherStreamMayStillRead) {
  EXPECT_THAT(Example().verdict({0, 256, 512, 512}), HasSubstr("may be in use"));
}

TEST(VerifyPlan, SeesBuffersThatInterleave) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  const BufferId a = writer.buffer(512);
  const BufferId b = writer.buffer(256);
  writer.task(stream, {}, {a});
  writer.task(stream, {}, {b});
  writer.task(stream, {a}, {});
  Example example;
  example.program = writer.take();
  EXPECT_THAT(example.verdict({0, 256}), HasSubstr("after its bytes went to buffer"));
  EXPECT_EQ(example.verdict({0, 512}), "good");
}

TEST(VerifyPlan, SeesPlacesOutsideTheArenaAndOffTheGrid) {
  EXPECT_THAT(Example().verdict({0, 0, 0, 1024}), HasSubstr("ends outside its arena"));
  EXPECT_THAT(Example().verdict({0, 0, 0, 300}), HasSubstr("not a multiple of 256"));
  EXPECT_THAT(Example().verdict({0, 0, 0}), HasSubstr("3 offsets for 4 buffers"));
  Example small;
  small.plan.step_bytes = 512;
  EXPECT_THAT(small.verdict({0, 0, 0, 256}), HasSubstr("needs 1024 bytes and has 512"));
}

TEST(VerifyPlan, SeesPersistentBuffersThatOverlap) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  writer.task(stream,
              {writer.buffer(300, BufferRole::kParam, Lifetime::kPersistent, "a"),
               writer.buffer(300, BufferRole::kParam, Lifetime::kPersistent, "b")},
              {});
  Example example;
  example.program = writer.take();
  example.plan.persistent_bytes = 1024;
  example.plan.persistent_offset_bytes = {{"a", 0}, {"b", 256}};
  EXPECT_THAT(example.verdict({0, 256}), HasSubstr("persistent buffers a and b overlap"));
  EXPECT_THAT(example.verdict({0, 512}), HasSubstr("b is not where its name says"));
}

TEST(VerifyPlan, LooksAtTheTwoMemoriesApart) {
  Example example;  // a, b, c and d; c is still in use when d begins
  example.program.buffers[3].placement = Placement::kHost;
  example.plan.host_bytes = example.plan.programs[0].host_arena_bytes = 256;
  EXPECT_EQ(example.verdict({0, 256, 512, 0}), "good");
  EXPECT_THAT(example.verdict({0, 256, 512, 512}), HasSubstr("ends outside its arena of 256"));
  example.program.buffers[2].placement = Placement::kHost;
  EXPECT_THAT(example.verdict({0, 256, 0, 0}), HasSubstr("may be in use"));
  example.plan.host_bytes = 0;
  EXPECT_THAT(example.verdict({0, 256, 512, 0}), HasSubstr("host arena needs 256 bytes and has 0"));
}

TEST(VerifyPlan, SeesAPersistentBufferOnTheHost) {
  ProgramWriter writer;
  writer.buffer(300, BufferRole::kParam, Lifetime::kPersistent, "a");
  Example example;
  example.program = writer.take();
  example.program.buffers[0].placement = Placement::kHost;
  example.plan.persistent_bytes = 1024;
  example.plan.persistent_offset_bytes = {{"a", 0}};
  EXPECT_EQ(example.verdict({0}), "persistent buffer a is placed on the host");
}

// The verdict on plans that put every buffer somewhere at random is that of the definition.
TEST(VerifyPlan, AgreesWithTheDefinitionOnRandomPlans) {
  int num_bad = 0;
  for (uint64_t seed = 0; seed < thinned_count(2000u, 5); ++seed) {
    Program program = random_small_program(seed);
    if (seed % 2 == 1) {
      program = with_host_buffers(std::move(program), seed);
    }
    std::mt19937_64 random(seed);
    MemoryPlan plan;
    plan.programs.resize(1);
    plan.programs[0].arena_bytes = plan.step_bytes = 1 << 20;
    plan.programs[0].host_arena_bytes = plan.host_bytes = 1 << 20;
    for (const Buffer& buffer : program.buffers) {
      int64_t offset = static_cast<int64_t>(random() % 200) * 256;
      if (buffer.lifetime == Lifetime::kPersistent) {
        offset = plan.persistent_bytes;
        plan.persistent_bytes += 8192;
        plan.persistent_offset_bytes[buffer.name] = offset;
      }
      plan.programs[0].offset_bytes.push_back(offset);
    }
    const OrderMatrix matrix(program);
    const bool is_good = matrix.is_conflict_free(program, plan.programs[0].offset_bytes);
    num_bad += is_good ? 0 : 1;
    ASSERT_EQ(verify_plan(program, plan, 0).empty(), is_good) << "seed " << seed;
  }
  EXPECT_GT(num_bad, thinned_count(300, 5));
  EXPECT_LT(num_bad, 1700);
}

}  // namespace
}  // namespace braid
