#include "memory/lasting_buffers.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "memory/programs.h"
#include "memory/verify_plan.h"

namespace braid {
namespace {

constexpr auto kNot = Lasting::kNot;
constexpr auto kShared = Lasting::kAmongOthers;
constexpr int64_t kLarge = 1 << 20;

/// Three large buffers and two small ones, each used after the previous one.
class LastingBuffers : public ::testing::Test {
 protected:
  LastingBuffers() {
    ProgramWriter writer;
    const StreamId stream = writer.stream(StreamKind::kCompute);
    for (const int64_t size_bytes : {kLarge, kLarge, kLarge, int64_t{300}, int64_t{300}}) {
      buffers_.push_back(writer.buffer(size_bytes));
      writer.task(stream, {}, {buffers_.back()});
    }
    programs_.push_back(writer.take());
    const Program* const programs[] = {&programs_.front()};
    plan_ = plan_memory(programs);
  }

  int64_t offset(const MemoryPlan& plan, size_t buffer) const {
    return plan.programs[0].offset_bytes[buffers_[buffer].index()];
  }
  MemoryPlan with(std::vector<Lasting> lasting) const {
    const std::vector<std::vector<Lasting>> by_program{std::move(lasting)};
    const MemoryPlan plan = with_lasting_buffers(plan_, programs_, by_program);
    EXPECT_THAT(verify_plan(programs_.front(), plan, 0), ::testing::IsEmpty());
    return plan;
  }

  std::vector<BufferId> buffers_;
  std::vector<Program> programs_;
  MemoryPlan plan_;
};

TEST_F(LastingBuffers, LieBehindAllOthers) {
  ASSERT_EQ(plan_.step_bytes, kLarge);
  const MemoryPlan plan = with({kNot, kShared, kNot, kNot, kNot});
  EXPECT_EQ(offset(plan, 0), 0);
  EXPECT_EQ(offset(plan, 1), kLarge);
  EXPECT_EQ(offset(plan, 2), 0);
  EXPECT_EQ(plan.step_bytes, 2 * kLarge);
  EXPECT_EQ(plan.peak_bytes(), plan.programs[0].arena_bytes);
}

TEST_F(LastingBuffers, ShareMemoryWithEachOther) {
  const MemoryPlan plan = with({kShared, kNot, kShared, kShared, kShared});
  EXPECT_EQ(offset(plan, 0), offset(plan, 2));
  EXPECT_EQ(plan.step_bytes, plan_.step_bytes + kLarge);
}

TEST_F(LastingBuffers, ShareNoMemoryIfAlone) {
  const MemoryPlan plan = with({Lasting::kAlone, kShared, kShared, kNot, kNot});
  EXPECT_EQ(offset(plan, 1), offset(plan, 2));
  EXPECT_NE(offset(plan, 0), offset(plan, 1));
  EXPECT_EQ(plan.step_bytes, 3 * kLarge);
}

TEST_F(LastingBuffers, ShareNoMemoryWithOtherDtypes) {
  Buffer& buffer = programs_.front().buffers[buffers_[2].index()];
  buffer.dtype = DType::kF32;
  buffer.shape = {kLarge / 4};
  const std::vector<std::vector<Lasting>> lasting{{kShared, kShared, kShared, kNot, kNot}};
  const MemoryPlan plan = with_lasting_buffers(plan_, programs_, lasting);
  EXPECT_EQ(offset(plan, 0), offset(plan, 1));
  EXPECT_NE(offset(plan, 0), offset(plan, 2));
  EXPECT_EQ(plan.step_bytes, 3 * kLarge);
}

TEST_F(LastingBuffers, AreNoneIfNothingLasts) {
  EXPECT_EQ(with(std::vector<Lasting>(buffers_.size(), kNot)).step_bytes, plan_.step_bytes);
}

TEST_F(LastingBuffers, MustBeThoseOfThePrograms) {
  const std::vector<std::vector<Lasting>> of_none;
  EXPECT_THAT(message_of<InternalError>([&] { with_lasting_buffers(plan_, programs_, of_none); }),
              ::testing::HasSubstr("1 programs, a plan of 1, and lasting buffers of 0"));
  const std::vector<std::vector<Lasting>> too_few{{kShared}};
  EXPECT_THAT(message_of<InternalError>([&] { with_lasting_buffers(plan_, programs_, too_few); }),
              ::testing::HasSubstr("5 buffers of step, and 1 that may last"));
}

TEST(WithLastingBuffers, ConflictsNowhereOnRandomPrograms) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Program program = random_small_program(seed);
    const Program* const programs[] = {&program};
    std::mt19937_64 random(seed);
    std::vector<Lasting> lasting(program.buffers.size());
    std::ranges::generate(lasting, [&] { return static_cast<Lasting>(random() % 3); });
    const std::vector<std::vector<Lasting>> by_program{lasting};
    const MemoryPlan plan = with_lasting_buffers(plan_memory(programs), {&program, 1}, by_program);
    ASSERT_THAT(verify_plan(program, plan, 0), ::testing::IsEmpty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace braid
