#include "calibrate/ranks_at_once.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <utility>

#include "backends/cpu/cpu_executor.h"
#include "ir/text.h"

namespace braid {
namespace {

/// y = y + x, element by element, on so many ranks at once.
TEST(RanksAtOnce, AllDoTheSameInMemoryOfTheirOwn) {
  const Program program = parse_program(
      "program step rank=0 ranks=1 events=0\n"
      "stream compute kind=compute priority=0\n"
      "buffer x f32 [3] io persistent device\n"
      "buffer y f32 [3] io persistent device\n"
      "buffer z f32 [3] io persistent device\n"
      "add(x, y -> z) compute forward\n"
      "copy(z -> y) compute forward\n");
  int num_made = 0;
  const ExecutorFactory make_one = [&](std::vector<Program> programs, MemoryPlan plan) {
    ++num_made;
    return std::make_unique<CpuExecutor>(std::move(programs), std::move(plan),
                                         CpuExecutorOptions{.num_workers = 1});
  };
  const Program* const programs[] = {&program};
  const auto executor = ranks_at_once(make_one, 3)({program}, plan_memory(programs));
  EXPECT_EQ(num_made, 3);
  const std::array<float, 3> x{1, 2, 3};
  executor->write("x", 0, std::as_bytes(std::span(x)));
  executor->zero("y");
  executor->run(0);
  executor->run(0);
  std::array<float, 3> y{};
  executor->read("y", 0, std::as_writable_bytes(std::span(y)));
  EXPECT_EQ(y, (std::array<float, 3>{2, 4, 6})) << "ranks that share memory would add more often";
}

}  // namespace
}  // namespace braid
