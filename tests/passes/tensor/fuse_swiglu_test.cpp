#include "passes/tensor/fuse_swiglu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "ir/text.h"
#include "ir/verify.h"
#include "ops/linear_swiglu.h"
#include "ops/op.h"
#include "passes/analysis/step_meaning.h"
#include "support/thinned.h"

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

Program program_of(const std::string& tasks, const std::string& tables = kTables) {
  Program program = parse_program(tables + tasks);
  EXPECT_THAT(verify(program, 4, Ordering::kProgramOrder), IsEmpty());
  return program;
}

/// The tasks after the pass, which must leave the meaning.
std::string fused_tasks(const std::string& tasks, int64_t num_pairs,
                        const std::string& tables = kTables) {
  const Program before = program_of(tasks, tables);
  const PassResult result = fuse_swiglu(before, {});
  EXPECT_EQ(result.report.num_changes, num_pairs);
  EXPECT_EQ(result.report.changed, num_pairs > 0);
  EXPECT_EQ(result.program == before, num_pairs == 0);
  EXPECT_THAT(verify(result.program, 4, Ordering::kProgramOrder), IsEmpty());
  EXPECT_THAT(compare_meaning(StepMeaning(before), result.program, StepMeaning(result.program)),
              IsEmpty());
  for (const Task& task : result.program.tasks) {
    const OpSpec& spec = result.program.spec(task);
    if (is_fused_product(spec)) {
      EXPECT_NO_THROW(check_spec(spec));
    }
  }
  return print_program(result.program).substr(tables.size());
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

const std::string kExpertTables = kTables +
                                  "buffer e1 f32 [8,3] param persistent device\n"
                                  "buffer e2 f32 [6,2] param persistent device\n"
                                  "buffer o i32 [3] activation persistent device\n"
                                  "buffer o2 i32 [3] activation persistent device\n"
                                  "buffer p f32 [4] activation persistent device\n"
                                  "buffer dp f32 [4] activation persistent device\n";
const std::string kRouted = "routed_swiglu(g, p, o -> y) s forward mb=0 layer=0 site=act\n";
const std::string kRoutedBackward =
    "routed_swiglu_backward(g, p, d, o -> dg, dp) s dgrad mb=0 layer=0 site=act\n";

TEST(FuseSwiglu, MakesTheProductsOfExpertsOneTaskEach) {
  const std::string forward = "grouped_linear(x, e1, o -> g) s forward mb=0 layer=0 site=fc1\n";
  const std::string dgrad = "grouped_linear_dgrad(x, e2, o -> d) s dgrad mb=0 layer=0 site=fc2\n";
  const std::string both =
      "grouped_linear_swiglu(x, e1, o, p -> g, y) s forward mb=0 layer=0 site=fc1\n";
  const std::string both_backward =
      "grouped_linear_dgrad_swiglu_backward(x, e2, o, g, p -> dg, dp) s dgrad mb=0 layer=0 "
      "site=fc2\n";
  const auto fused = [](const std::string& tasks, int64_t num_pairs) {
    return fused_tasks(tasks, num_pairs, kExpertTables);
  };
  EXPECT_EQ(fused(forward + kOther + kRouted, 1), both + kOther);
  EXPECT_EQ(fused(forward + kRouted + dgrad + kRoutedBackward, 2), both + both_backward);
}

TEST(FuseSwiglu, NeedsTheOffsetsThatTheProductOfExpertsRead) {
  const std::string others =
      "grouped_linear(x, e1, o2 -> g) s forward mb=0 layer=0 site=fc1\n" + kRouted +
      "grouped_linear_dgrad(x, e2, o2 -> d) s dgrad mb=0 layer=0\n" + kRoutedBackward;
  EXPECT_EQ(fused_tasks(others, 0, kExpertTables), others);
}

// What is between the two may depend on overlap, and d_weights are added up in another order if
// they are fused.
TEST(FuseSwiglu, LeavesGradientsOfExpertsApartWhereGatesAreComputedBetween) {
  const std::string dgrad = "grouped_linear_dgrad(x, e2, o -> d) s dgrad mb=0 layer=0 site=fc2\n";
  const std::string again = "grouped_linear(x, e1, o -> g) s dgrad mb=0 layer=0 site=fc1\n";
  const std::string tasks = dgrad + again + kRoutedBackward;
  EXPECT_EQ(fused_tasks(tasks, 0, kExpertTables), tasks);
  EXPECT_EQ(fused_tasks(again + dgrad + kRoutedBackward, 1, kExpertTables),
            again +
                "grouped_linear_dgrad_swiglu_backward(x, e2, o, g, p -> dg, dp) s dgrad mb=0 "
                "layer=0 site=fc2\n");
}

// The kernel of both reads weights of rows all along, so what it writes must be elsewhere.
TEST(FuseSwiglu, NeedsResultsApartFromWhatTheProductReads) {
  const std::string tasks =
      kLinear +
      "grouped_linear_dgrad(x, e2, o -> d) s dgrad mb=0 layer=0\n"
      "routed_swiglu_backward(g, p, d, o -> dg, x[0:4]) s dgrad mb=0 layer=0\n";
  EXPECT_EQ(fused_tasks(tasks, 0, kExpertTables), tasks);
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
    // Only the activation moves forward: the tasks in between stay after the product.
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

// N = 8 rows, K = M = 3, F = 16: a row of every operand of SwiGLU is as many elements as a piece
// must have.
const std::string kWideTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream c kind=comm priority=0\n"
    "buffer x f32 [8,3] activation persistent device\n"
    "buffer w1 f32 [32,3] param persistent device\n"
    "buffer w2 f32 [3,16] param persistent device\n"
    "buffer g f32 [8,32] activation step device\n"
    "buffer y f32 [8,16] activation persistent device\n"
    "buffer d f32 [8,16] activation step device\n"
    "buffer dg f32 [8,32] activation persistent device\n";

/// Rows of the buffer of that width.
std::string rows(const char* buffer, int64_t begin, int64_t end, int64_t width) {
  return begin == 0 && end == 8 ? std::string(buffer)
                                : fmt::format("{}[{}:{}] [{},{}]", buffer, begin * width,
                                              end * width, end - begin, width);
}

std::string linear(int64_t begin, int64_t end) {
  return fmt::format(
      "linear({}, w1 -> {}) {{has_bias=false, adds_bias=true}} s forward mb=0 site=fc1\n",
      rows("x", begin, end, 3), rows("g", begin, end, 32));
}

std::string swiglu(int64_t begin, int64_t end) {
  return fmt::format("swiglu({} -> {}) s forward mb=0 site=act\n", rows("g", begin, end, 32),
                     rows("y", begin, end, 16));
}

std::string both(int64_t begin, int64_t end) {
  return fmt::format("linear_swiglu({}, w1 -> {}, {}) s forward mb=0 site=fc1\n",
                     rows("x", begin, end, 3), rows("g", begin, end, 32),
                     rows("y", begin, end, 16));
}

std::string dgrad(int64_t begin, int64_t end) {
  return fmt::format("linear_dgrad({}, w2 -> {}) {{accumulate=false}} s dgrad mb=0 site=fc2\n",
                     rows("x", begin, end, 3), rows("d", begin, end, 16));
}

std::string swiglu_backward(int64_t begin, int64_t end) {
  return fmt::format("swiglu_backward({}, {} -> {}) s dgrad mb=0 site=act\n",
                     rows("g", begin, end, 32), rows("d", begin, end, 16),
                     rows("dg", begin, end, 32));
}

std::string both_backward(int64_t begin, int64_t end) {
  return fmt::format("linear_dgrad_swiglu_backward({}, w2, {} -> {}) s dgrad mb=0 site=fc2\n",
                     rows("x", begin, end, 3), rows("g", begin, end, 32),
                     rows("dg", begin, end, 32));
}

std::string fused_rows(const std::string& tasks, int64_t num_activations) {
  return fused_tasks(tasks, num_activations, kWideTables);
}

TEST(FuseSwiglu, PiecesOfAProductTakeTheirRows) {
  const std::string other = "cast(w2 -> dg[0:48] [3,16]) s forward mb=0\n";
  EXPECT_EQ(fused_rows(linear(5, 8) + other + linear(0, 2) + linear(2, 5) + swiglu(0, 8), 1),
            both(5, 8) + other + both(0, 2) + both(2, 5));
  EXPECT_EQ(fused_rows(linear(0, 8) + dgrad(4, 8) + dgrad(0, 4) + swiglu_backward(0, 8), 1),
            linear(0, 8) + both_backward(4, 8) + both_backward(0, 4));
  // The product has other pieces than the one that the gates come from.
  EXPECT_EQ(fused_rows(linear(0, 3) + linear(3, 8) + swiglu(0, 8) + dgrad(4, 8) + dgrad(0, 4) +
                           swiglu_backward(0, 8),
                       2),
            both(0, 3) + both(3, 8) + both_backward(4, 8) + both_backward(0, 4));
  // Some of the rows, in pieces.
  EXPECT_EQ(fused_rows(linear(0, 2) + linear(2, 5) + linear(5, 8) + swiglu(2, 8), 1),
            linear(0, 2) + both(2, 5) + both(5, 8));
}

TEST(FuseSwiglu, AllPiecesTakeTheirRowsOrNone) {
  const auto expect_whole = [](const std::string& tasks) {
    EXPECT_EQ(fused_rows(tasks, 0), tasks);
  };
  const std::string pieces = linear(0, 4) + linear(4, 8);
  expect_whole(pieces + "f(-> g[5:6]) s forward\n" + swiglu(0, 8));
  expect_whole("f(-> g[0:128]) s forward\n" + linear(4, 8) + swiglu(0, 8));
  expect_whole(linear(0, 5) + linear(4, 8) + swiglu(0, 8));
  expect_whole(pieces + swiglu(0, 3) + swiglu(3, 8));
  expect_whole(linear(0, 4) + "f(y[64:65] -> w2) s forward\n" + linear(4, 8) +
               "f(-> y[3:4]) s forward\n" + swiglu(0, 8));
  expect_whole(linear(0, 4) +
               "linear(x[12:24] [4,3], w1 -> g[128:256] [4,32]) {has_bias=false, adds_bias=true} s "
               "forward mb=1 site=fc1\n" +
               swiglu(0, 8));
  // Something else reads some of what one piece hands on.
  expect_whole(linear(0, 8) + dgrad(0, 4) + dgrad(4, 8) + swiglu_backward(0, 8) +
               "f(d[70:71] -> y) s dgrad\n");
  // Not one after the other where the gates are made again: the first would hide no more.
  expect_whole(dgrad(0, 4) + dgrad(4, 8) +
               "linear(x, w1 -> g) {has_bias=false, adds_bias=true} s dgrad mb=0 site=fc1\n" +
               swiglu_backward(0, 8));
}

// Half a row has no place of its own, nor have 8 elements.
TEST(FuseSwiglu, CutsBetweenRowsAndWhereKernelsAreAligned) {
  const std::string halves =
      "linear(x, w1[0:48] [16,3] -> g[0:128] [8,16]) {has_bias=false, adds_bias=true} s forward "
      "mb=0 site=fc1\n"
      "linear(x, w1[48:96] [16,3] -> g[128:256] [8,16]) {has_bias=false, adds_bias=true} s forward "
      "mb=0 site=fc1\n";
  EXPECT_EQ(fused_rows(halves + swiglu(0, 8), 0), halves + swiglu(0, 8));
  const std::string narrow =
      "linear(x[0:9] [3,3], w1[0:48] [16,3] -> g[0:48] [3,16]) {has_bias=false, adds_bias=true} s "
      "forward mb=0 site=fc1\n"
      "linear(x[9:24] [5,3], w1[0:48] [16,3] -> g[48:128] [5,16]) {has_bias=false, adds_bias=true} "
      "s forward mb=0 site=fc1\n"
      "swiglu(g[0:128] [8,16] -> y[0:64] [8,8]) s forward mb=0 site=act\n";
  EXPECT_EQ(fused_rows(narrow, 0), narrow);
}

/// Products of some rows, activations of some rows, and tasks between them.
Program random_pieces(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  };
  std::string tasks = "f(-> g) s forward\nf(-> d) s forward\n";
  for (int64_t left = 1 + below(4); left > 0; --left) {
    const bool is_forward = below(2) == 0;
    const int64_t middle = 1 + below(7);
    std::vector<std::string> group = is_forward ? std::vector{linear(0, middle), linear(middle, 8)}
                                                : std::vector{dgrad(0, middle), dgrad(middle, 8)};
    if (below(2) == 0) {
      std::swap(group[0], group[1]);
    }
    if (below(3) == 0) {
      constexpr std::array kNames = {"x", "g", "y", "d", "dg"};
      const int64_t begin = below(20);
      group.insert(group.begin() + below(3),
                   fmt::format("f({}[{}:{}] -> {}[{}:{}]) s forward\n", kNames[random() % 5], begin,
                               begin + 1, kNames[random() % 5], begin, begin + 1 + below(4)));
    }
    for (const std::string& task : group) {
      tasks += task;
    }
    const int64_t first = below(4) == 0 ? below(8) : 0;
    tasks += is_forward ? swiglu(first, 8) : swiglu_backward(first, 8);
  }
  return parse_program(kWideTables + tasks + "f(g -> x) s forward\n");
}

TEST(FuseSwiglu, KeepsTheMeaningOfRandomPieces) {
  int64_t num_fused = 0;
  int64_t num_alone = 0;
  for (uint64_t seed = 0; seed < thinned_count(2000u, 5) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program before = random_pieces(seed);
    const PassResult result = fuse_swiglu(before, {});
    ASSERT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
    ASSERT_THAT(compare_meaning(StepMeaning(before), result.program, StepMeaning(result.program)),
                IsEmpty())
        << print_program(before) << print_program(result.program);
    ASSERT_FALSE(fuse_swiglu(result.program, {}).report.changed);
    num_fused += result.report.num_changes;
    num_alone += std::ranges::count_if(result.program.tasks, [&](const Task& task) {
      return result.program.spec(task).op.starts_with("swiglu");
    });
  }
  EXPECT_GT(num_fused, thinned_count(1000, 5));
  EXPECT_GT(num_alone, thinned_count(500, 5));
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
  for (uint64_t seed = 0; seed < thinned_count(4000u, 5) && !testing::Test::HasFailure(); ++seed) {
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
  EXPECT_GT(num_changed, thinned_count(800, 5));
  EXPECT_GT(num_pairs, num_changed);  // several in one program, too
}

}  // namespace
}  // namespace braid
