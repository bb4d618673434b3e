#include "memory/known_plans.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "memory/programs.h"

namespace braid {
namespace {

MemoryPlan plan_with(const Program& program, KnownPlans* known) {
  const Program* const programs[] = {&program};
  return known == nullptr ? plan_memory(programs) : plan_memory_with(programs, *known);
}

bool are_equal(const StepPlan& a, const StepPlan& b) {
  return a.offset_bytes == b.offset_bytes && a.arena_bytes == b.arena_bytes &&
         a.max_live_bytes == b.max_live_bytes && a.peak_by_role == b.peak_by_role &&
         a.host_arena_bytes == b.host_arena_bytes && a.host_max_live_bytes == b.host_max_live_bytes;
}

// One table for all programs: a key that two of them shared would give one the plan of the other.
TEST(KnownPlans, ChangeNoPlan) {
  KnownPlans known;
  for (int round = 0; round < 2; ++round) {
    for (uint64_t seed = 0; seed < 300; ++seed) {
      const Program program = random_small_program(seed);
      const MemoryPlan expected = plan_with(program, nullptr);
      const MemoryPlan actual = plan_with(program, &known);
      ASSERT_TRUE(are_equal(actual.programs[0], expected.programs[0])) << "seed " << seed;
      ASSERT_EQ(actual.peak_bytes(), expected.peak_bytes()) << "seed " << seed;
      ASSERT_TRUE(known.find(packing_key(program)).has_value()) << "seed " << seed;
    }
  }
}

/// Two streams, an event between them, three buffers.
Program small_program() {
  ProgramWriter writer;
  const StreamId compute = writer.stream(StreamKind::kCompute);
  const StreamId copy = writer.stream(StreamKind::kCopy);
  const BufferId a = writer.buffer(512);
  const BufferId b = writer.buffer(512);
  const BufferId c = writer.buffer(1024);
  writer.task(compute, {}, {a});
  writer.task(compute, {a}, {b});
  writer.task(copy, {b}, {c});
  return writer.take();
}

TEST(KnownPlans, KeysHaveAllThatOffsetsDependOn) {
  const std::vector<std::function<void(Program&)>> changes = {
      [](Program& it) { it.buffers[0].shape = it.buffers[2].shape; },
      [](Program& it) { it.buffers[0].role = BufferRole::kScratch; },
      [](Program& it) { it.buffers[0].lifetime = Lifetime::kPersistent; },
      [](Program& it) { it.buffers[0].placement = Placement::kHost; },
      [](Program& it) { it.tasks[2].num_waits = 0; },
      [](Program& it) { it.tasks[0].record = std::exchange(it.tasks[1].record, EventId()); },
      [](Program& it) { it.tasks[1].stream = it.tasks[2].stream; },
      [](Program& it) { std::swap(it.tasks[0], it.tasks[1]); },
      [](Program& it) { it.operands[0].buffer = it.operands[1].buffer = BufferId(2); },
      [](Program& it) { it.operands[0].end = it.operands[0].begin; },
  };
  const Program program = small_program();
  for (size_t i = 0; i < changes.size(); ++i) {
    Program changed = program;
    changes[i](changed);
    EXPECT_NE(packing_key(changed), packing_key(program)) << "change " << i;
  }
}

TEST(KnownPlans, KeysHaveNothingElse) {
  const Program program = small_program();
  Program other = program;
  other.rank = 3;
  other.buffers[0].name = "another name";
  other.tasks[0].label.layer = 7;
  other.operands[0].begin = other.operands[0].end - 1;
  EXPECT_EQ(packing_key(other), packing_key(program));
}

}  // namespace
}  // namespace braid
