#include "backends/stream_scratch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backends/cpu/cpu_executor.h"
#include "backends/cpu/cpu_scratch.h"
#include "memory/memory_plan.h"
#include "ops/attributes.h"
#include "ops/elementwise.h"
#include "support/step_program.h"

namespace braid {
namespace {

Program fills(const std::vector<double>& compute_values, double comm_value) {
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const StreamId comm = builder.stream("comm", StreamKind::kComm);
  const BufferId a = builder.persistent("a", 4);
  for (const double value : compute_values) {
    builder.fill(compute, a, value);
  }
  builder.fill(comm, builder.persistent("b", 4), comm_value);
  return builder.finish();
}

TEST(StreamScratch, IsTheLargestOfEachStreamOverAllPrograms) {
  int asked = 0;
  const ScratchOf scratch_of = [&](const OpSpec& spec, const Stream& stream) {
    ++asked;
    EXPECT_TRUE(stream.name == "compute" || stream.name == "comm");
    return static_cast<size_t>(attributes_of<FillAttributes>(spec).value);
  };
  StreamScratch scratch;
  count_scratch(fills({100, 300, 100}, 500), scratch_of, scratch);
  EXPECT_EQ(asked, 3);  // once per spec and stream
  EXPECT_EQ(scratch.size_bytes(), 300 + 500);
  count_scratch(fills({200}, 700), scratch_of, scratch);
  EXPECT_EQ(scratch.num_streams(), 2u);
  EXPECT_EQ(scratch.size_bytes(0), 300);
  EXPECT_EQ(scratch.size_bytes(1), 700);
}

TEST(StreamScratch, StreamsOfOneNameAndTwoKindsAreTwo) {
  StreamScratch scratch;
  EXPECT_EQ(scratch.add({.name = "s", .kind = StreamKind::kCompute}), 0u);
  EXPECT_EQ(scratch.add({.name = "s", .kind = StreamKind::kCopy}), 1u);
  EXPECT_EQ(scratch.add({.name = "s", .kind = StreamKind::kCompute}), 0u);
}

}  // namespace
}  // namespace braid
