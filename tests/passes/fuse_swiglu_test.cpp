#include "passes/fuse_swiglu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "ir/text.h"
#include "ir/verify.h"
#include "ops/op.h"
#include "passes/step_meaning.h"

namespace braid {
namespace {

using ::testing::IsEmpty;

// N = 4 rows, K = M = 3, F = 2.
const std::string kTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream c kind=comm priority=0\n"
    "buffer x f32 [4,3] activation persistent device\n"
    "buffer w1 f32 [4,3] param persistent device\n"
    "buffer w2 f32 [3,2] param persistent device\n"
    "buffer b f32 [4] param persistent device\n"
    "buffer g f32 [4,4] activation step device\n"
    "buffer y f32 [4,2] activation persistent device\n"
    "buffer y2 f32 [4,2] activation persistent device\n"
    "buffer d f32 [4,2] activation step device\n"
    "buffer dg f32 [4,4] activation persistent device\n"
    "buffer h f32 [4,4] activation persistent host\n";

const std::string kLinear =
    "linear(x, w1 -> g) {has_bias=false, adds_bias=true} s forward mb=0 layer=0 site=fc1\n";
const std::string kSwiglu = "swiglu(g -> y) s forward mb=0 layer=0 site=act\n";
const std::string kDgrad =
    "linear_dgrad(x, w2 -> d) {accumulate=false} s dgrad mb=0 layer=0 site=fc2\n";
const std::string kSwigluBackward = "swiglu_backward(g, d -> dg) s dgrad mb=0 layer=0 site=act\n";
const std::string kBoth = "linear_swiglu(x, w1 -> g, y) s forward mb=0 layer=0 site=fc1\n";
const std::string kBothBackward =
    "linear_dgrad_swiglu_backward(x, w2, g -> dg) s dgrad mb=0 layer=0 site=fc2\n";
const std::string kOther = "cast(w2 -> y2) s forward mb=0 layer=0 site=other\n";

Program program_of(const std::string& tasks) {
  Program program = parse_program(kTables + tasks);
  EXPECT_THAT(verify(program, 4, Ordering::kProgramOrder), IsEmpty());
  return program;
}

/// The tasks after the pass, which must leave the meaning.
std::string fused_tasks(const std::string& tasks, int64_t num_pairs) {
  const Program before = program_of(tasks);
  const PassResult result = fuse_swiglu(before, {});
  EXPECT_EQ(result.report.num_changes, num_pairs);
  EXPECT_EQ(result.report.changed, num_pairs > 0);
  EXPECT_EQ(result.program == before, num_pairs == 0);
  EXPECT_THAT(verify(result.program, 4, Ordering::kProgramOrder), IsEmpty());
  EXPECT_THAT(compare_meaning(StepMeaning(before), result.program, StepMeaning(result.program)),
              IsEmpty());
  for (const Task& task : result.program.tasks) {
    const OpSpec& spec = result.program.spec(task);
    if (spec.op.starts_with("linear_swiglu") || spec.op.starts_with("linear_dgrad_swiglu")) {
      EXPECT_NO_THROW(check_spec(spec));
    }
  }
  return print_program(result.program).substr(kTables.size());
}

void expect_apart(const std::string& tasks) {
  EXPECT_EQ(fused_tasks(tasks, 0), tasks);
}

TEST(FuseSwiglu, MakesTheForwardOneTaskAtTheProductsPlace) {
  EXPECT_EQ(fused_tasks(kLinear + kSwiglu, 1), kBoth);
  const std::string reader = "f(g -> y2) s forward\n";
  EXPECT_EQ(fused_tasks(kLinear + kOther + kSwiglu, 1), kBoth + kOther);
  EXPECT_EQ(fused_tasks(kLinear + reader + kSwiglu, 1), kBoth + reader);
}

TEST(FuseSwiglu, MakesTheBackwardOneTaskAndLeavesOutWhatIsHandedOn) {
  const std::string wgrad = "wgrad(y, x -> y2) s wgrad mb=0 layer=0 site=fc2\n";
  EXPECT_EQ(fused_tasks(kLinear + kDgrad + wgrad + kSwigluBackward, 1),
            kLinear + kBothBackward + wgrad);
  const Program program = fuse_swiglu(program_of(kLinear + kDgrad + kSwigluBackward), {}).program;
  for (const BufferRange& range : program.operands) {
    EXPECT_NE(program.buffers[range.buffer.index()].name, "d");
  }
  EXPECT_EQ(fused_tasks(kLinear + kSwiglu + kDgrad + kSwigluBackward, 2), kBoth + kBothBackward);
}

TEST(FuseSwiglu, LeavesAllAsItIsWhereItIsNotEnabled) {
  const Program program = program_of(kLinear + kSwiglu);
  const PassResult result = fuse_swiglu(program, {.enabled = false});
  EXPECT_EQ(result.program, program);
  EXPECT_FALSE(result.report.changed);
}

TEST(FuseSwiglu, NeedsAProductWithoutBiasAndWithoutASum) {
  expect_apart("linear(x, w1, b -> g) {has_bias=true, adds_bias=true} s forward mb=0 layer=0\n" +
               kSwiglu);
  expect_apart(kLinear + "f(-> d) s forward\n" +
               "linear_dgrad(x, w2 -> rw d) {accumulate=true} s dgrad mb=0 layer=0\n" +
               kSwigluBackward);
}

TEST(FuseSwiglu, NeedsOneStream) {
  expect_apart(kLinear + "swiglu(g -> y) c forward mb=0 layer=0 site=act\n");
}

// What is made again in the backward, of what the forward has left, stays there.
TEST(FuseSwiglu, LeavesAnActivationThatIsMadeAgainAlone) {
  const std::string again = "swiglu(g -> y2) s dgrad mb=0 layer=0 site=act\n";
  expect_apart(kLinear + again);
  EXPECT_EQ(fused_tasks(kLinear + kSwiglu + again, 1), kBoth + again);
  EXPECT_EQ(fused_tasks(kLinear + kSwiglu + "swiglu(g -> y2) s forward mb=0 layer=0 site=act\n", 1),
            kBoth + "swiglu(g -> y2) s forward mb=0 layer=0 site=act\n");
}

TEST(FuseSwiglu, LeavesWhatIsReadByOthersInMemory) {
  for (const std::string other : {"f(d -> y2) s wgrad\n", "f(d[3:4] -> b[0:1]) s wgrad\n"}) {
    expect_apart(kLinear + kDgrad + other + kSwigluBackward);
    expect_apart(kLinear + kDgrad + kSwigluBackward + other);
  }
}

TEST(FuseSwiglu, NeedsJustTheRangeThatIsWritten) {
  const std::string rows = "swiglu(g[0:8] [2,4] -> y[0:4] [2,2]) s forward mb=0 layer=0\n";
  expect_apart(kLinear + rows);
  expect_apart(kLinear + "f(-> g[5:6]) s forward\n" + kSwiglu);
  // Two rows each.
  const auto range = [](const char* buffer, int first, int width) {
    return fmt::format("{}[{}:{}] [2,{}]", buffer, first * width, (first + 2) * width, width);
  };
  const auto linear = [&](int first) {
    return fmt::format(
        "linear({}, w1 -> {}) {{has_bias=false, adds_bias=true}} s forward mb=0 layer=0\n",
        range("x", first, 3), range("g", first, 4));
  };
  const auto swiglu = [&](int first) {
    return fmt::format("swiglu({} -> {}) s forward mb=0 layer=0\n", range("g", first, 4),
                       range("y", first, 2));
  };
  const auto both = [&](int first) {
    return fmt::format("linear_swiglu({}, w1 -> {}, {}) s forward mb=0 layer=0\n",
                       range("x", first, 3), range("g", first, 4), range("y", first, 2));
  };
  expect_apart(linear(0) + linear(2) + kSwiglu);
  EXPECT_EQ(fused_tasks(linear(2) + linear(0) + swiglu(0) + swiglu(2), 2), both(2) + both(0));
}

// Recomputation of all of a layer stands between the two: the gates are not there before.
TEST(FuseSwiglu, TakesTheActivationsPlaceWhereTheProductsIsTooEarly) {
  const std::string again =
      "linear(x, w1 -> g) {has_bias=false, adds_bias=true} s dgrad mb=0 layer=0 site=fc1\n";
  EXPECT_EQ(fused_tasks(kDgrad + again + kSwigluBackward, 1), again + kBothBackward);
  EXPECT_EQ(
      fused_tasks(
          kDgrad + again + "swiglu(g -> y) s dgrad mb=0 layer=0 site=act\n" + kSwigluBackward, 2),
      "linear_swiglu(x, w1 -> g, y) s dgrad mb=0 layer=0 site=fc1\n" + kBothBackward);
  // Nor may the product be late.
  const std::string weights = "f(-> w2) s wgrad\n";
  expect_apart(kDgrad + again + weights + kSwigluBackward);
}

// Behind the first that reads what comes from elsewhere the product would hide nothing of it; the
// same wherever and on whatever stream the communication is.
TEST(FuseSwiglu, StaysInFrontOfWhatItMayHide) {
  const std::string again =
      "linear(x, w1 -> g) {has_bias=false, adds_bias=true} s dgrad mb=0 layer=0 site=fc1\n";
  const std::string reader = "add(y2, y2 -> y) s wgrad\n";
  for (const std::string stream : {"s", "c"}) {
    const std::string reload = "reload(h[0:8] -> y2) " + stream + " comm\n";
    expect_apart(reload + kDgrad + reader + again + kSwigluBackward);
    expect_apart(kDgrad + reload + reader + again + kSwigluBackward);
    expect_apart(reload + kDgrad + again + reader + kSwigluBackward);
    // It has been read before.
    EXPECT_EQ(fused_tasks(reload + reader + kDgrad + again + reader + kSwigluBackward, 1),
              reload + reader + again + reader + kBothBackward);
    // Nor what came with it.
    const std::string part = "add(y2[0:1], y2[1:2] -> y[0:1]) s wgrad\n";
    EXPECT_EQ(fused_tasks(reload + part + kDgrad + again + reader + kSwigluBackward, 1),
              reload + part + again + reader + kBothBackward);
    // Nobody reads it in between.
    EXPECT_EQ(fused_tasks(kDgrad + reload + again + kSwigluBackward + reader, 1),
              reload + again + kBothBackward + reader);
    // To the front the activation alone moves: what is between is behind the product as before.
    EXPECT_EQ(fused_tasks(kLinear + reload + kDgrad + reader + kSwigluBackward, 1),
              kLinear + reload + kBothBackward + reader);
  }
}

TEST(FuseSwiglu, KeepsTheOrderOfConflicts) {
  // y is read, or written, in between.
  expect_apart(kLinear + "f(y -> g[0:1]) s forward\n" + kSwiglu);
  const std::string reader = "f(y, x -> b) s forward\n";
  EXPECT_EQ(fused_tasks(kLinear + reader + kSwiglu, 1), reader + kBoth);
  expect_apart(kLinear + reader + "f(-> x) s forward\n" + kSwiglu);
  // The activation writes what the product reads.
  expect_apart("linear(h, w1 -> g) {has_bias=false, adds_bias=true} s forward mb=0 layer=0\n" +
               std::string("swiglu(g -> h[0:8]) s forward mb=0 layer=0\n"));
}

/// Programs of products, activations and tasks between them, on ranges of a few buffers.
class RandomPairs {
 public:
  explicit RandomPairs(uint64_t seed) : random_(seed) {}

  Program program() {
    std::string tasks = "f(-> g) s forward\nf(-> d) s forward\n";
    for (int64_t left = 4 + below(12); left > 0; --left) {
      tasks += task();
    }
    return parse_program(kTables + tasks + "f(g, d -> x) s forward\n");
  }

 private:
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }

  std::string task() {
    const std::string stream = below(8) == 0 ? "c" : "s";
    const std::string end = fmt::format(" {} {} mb={}\n", stream, below(6) > 0 ? "dgrad" : "wgrad",
                                        below(6) == 0 ? 1 : 0);
    switch (below(7)) {
      case 0:
      case 1:
        return "linear(x, w1 -> g) {has_bias=false, adds_bias=true}" + end;
      case 2:
      case 3:
        return "linear_dgrad(x, w2 -> d) {accumulate=false}" + end;
      case 4:
        return fmt::format("swiglu(g -> {})", below(2) > 0 ? "y" : "y2") + end;
      case 5:
        return "swiglu_backward(g, d -> dg)" + end;
      default:
        return fmt::format("f({} -> {})", range(), range()) + end;
    }
  }

  std::string range() {
    constexpr std::array kNames = {"x", "w1", "w2", "g", "y", "y2", "d", "dg"};
    const int64_t begin = below(6);
    return fmt::format("{}[{}:{}]", kNames[static_cast<size_t>(below(kNames.size()))], begin,
                       begin + 1 + below(6 - begin));
  }

  std::mt19937_64 random_;
};

TEST(FuseSwiglu, KeepsTheMeaningOfRandomPrograms) {
  int64_t num_pairs = 0;
  int num_changed = 0;
  for (uint64_t seed = 0; seed < 4000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program before = RandomPairs(seed).program();
    ASSERT_THAT(verify(before, 1, Ordering::kProgramOrder), IsEmpty());
    const PassResult result = fuse_swiglu(before, {});
    ASSERT_EQ(result.report.changed, !(result.program == before));
    ASSERT_EQ(static_cast<int64_t>(before.tasks.size() - result.program.tasks.size()),
              result.report.num_changes);
    ASSERT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
    ASSERT_THAT(compare_meaning(StepMeaning(before), result.program, StepMeaning(result.program)),
                IsEmpty())
        << print_program(before) << print_program(result.program);
    num_pairs += result.report.num_changes;
    num_changed += result.report.changed ? 1 : 0;
    ASSERT_FALSE(fuse_swiglu(result.program, {}).report.changed);
  }
  EXPECT_GT(num_changed, 800);
  EXPECT_GT(num_pairs, num_changed);  // several in one program, too
}

}  // namespace
}  // namespace braid
