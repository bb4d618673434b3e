#include "passes/analysis/piece_interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>

#include "ir/text.h"
#include "passes/analysis/step_meaning.h"

namespace braid {
namespace {

/// Rank 1 of two tensor ranks. With 6 rows of width 4 in a step, a rank has 3.
const char* const kHeader =
    "program step rank=1 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group tensor kind=tensor ranks=0,1\n"
    "group pipeline kind=pipeline ranks=1,0\n"
    "buffer w f32 [4,4] param persistent device\n"
    "buffer g f32 [4,4] main_grad persistent device\n"
    "buffer out f32 [8,4] activation persistent device\n"
    "buffer in f32 [8,4] activation persistent device\n"
    "buffer x f32 [4,4] activation step device\n"
    "buffer x2 f32 [4,4] activation step device\n"
    "buffer X f32 [8,4] activation step device\n"
    "buffer Y f32 [8,4] activation step device\n"
    "buffer Z f32 [8,4] activation step device\n"
    "buffer S f32 [4,4] activation step device\n";

bool are_equal(const std::string& before, const std::string& after) {
  const Program a = parse_program(kHeader + before);
  const Program b = parse_program(kHeader + after);
  return compare_meaning(StepMeaning(a, StepMeaning::Of::kSums), b,
                         StepMeaning(b, StepMeaning::Of::kSums))
      .empty();
}

/// A linear of `rows` rows from row `from` of x, to row `to` of y.
std::string linear(const char* x, int from, const char* y, int to, int rows) {
  return fmt::format(
      "linear({0}[{1}:{2}] [{5},4], w -> {3}[{4}:{6}] [{5},4]) "
      "{{has_bias=false, adds_bias=true}} s forward\n",
      x, 4 * from, 4 * (from + rows), y, 4 * to, rows, 4 * (to + rows));
}

TEST(PieceInterpreter, ProductsInPiecesOfRowsAreTheWhole) {
  const std::string whole = linear("in", 0, "out", 0, 8);
  EXPECT_TRUE(are_equal(whole, linear("in", 3, "out", 3, 5) + linear("in", 0, "out", 0, 3)));
  EXPECT_FALSE(are_equal(whole, linear("in", 2, "out", 3, 5) + linear("in", 0, "out", 0, 3)));
}

TEST(PieceInterpreter, WeightGradientsInPiecesOfFeaturesAreTheWhole) {
  const std::string format =
      "linear_wgrad(in, in -> rw g[{0}:{1}] [{2},4]) {{has_bias=false, accumulate=true{3}}} s "
      "wgrad\n";
  const auto piece = [&](int begin, int end, int first) {
    return fmt::format(
        fmt::runtime(format), 4 * begin, 4 * end, end - begin,
        fmt::format(", first_feature={}, end_feature={}", first, first + end - begin));
  };
  const std::string whole = fmt::format(fmt::runtime(format), 0, 16, 4, "");
  EXPECT_TRUE(are_equal(whole, piece(1, 4, 1) + piece(0, 1, 0)));
  EXPECT_FALSE(are_equal(whole, piece(1, 4, 0) + piece(0, 1, 0)));
  EXPECT_FALSE(are_equal(whole, piece(1, 4, 1) + piece(0, 1, 0) + piece(0, 1, 0)));
}

const char* const kOwnRows = "rmsnorm_like(in[0:16] -> x) s forward\n";

TEST(PieceInterpreter, ARingIsAnAllGather) {
  const std::string gather =
      std::string(kOwnRows) + "all_gather(x -> X) {group=0} s comm\n" + linear("X", 0, "out", 0, 8);
  const std::string shift = std::string(kOwnRows) +
                            "ring_shift(x -> X[0:16] [4,4]) "
                            "{group=0, shift=1} s comm\n";
  EXPECT_TRUE(are_equal(gather, shift + linear("x", 0, "out", 4, 4) + linear("X", 0, "out", 0, 4)));
  EXPECT_FALSE(
      are_equal(gather, shift + linear("X", 0, "out", 4, 4) + linear("x", 0, "out", 0, 4)));
  EXPECT_FALSE(
      are_equal(gather, shift + linear("x", 0, "out", 4, 4) + linear("x", 0, "out", 0, 4)));
}

TEST(PieceInterpreter, ASumOfShiftedBlocksIsAReduceScatter) {
  const std::string product = linear("in", 0, "Y", 0, 8);
  const std::string scatter = product + "reduce_scatter(Y -> out[0:16] [4,4]) {group=0} s comm\n";
  const auto ring = [&](const char* given, const char* first, const char* second) {
    return product + fmt::format(
                         "ring_shift(Y{} [4,4] -> S) {{group=0, shift=1}} s comm\n"
                         "sum_blocks({} [4,4], {} [4,4] -> out[0:16] [4,4]) s forward\n",
                         given, first, second);
  };
  EXPECT_TRUE(are_equal(scatter, ring("[0:16]", "S", "Y[16:32]")));
  EXPECT_FALSE(are_equal(scatter, ring("[16:32]", "S", "Y[16:32]")));  // gives its own block
  EXPECT_FALSE(are_equal(scatter, ring("[0:16]", "S", "Y[0:16]")));
  EXPECT_FALSE(are_equal(scatter, ring("[0:16]", "S", "S")));
}

TEST(PieceInterpreter, RowsMayBeSpreadInAnotherWay) {
  // The rows of a rank: 4 of 8, or 2 of each half.
  const auto step = [](int halves) {
    std::string text = linear("in", 0, "Y", 0, 8);
    const int rows = 8 / halves;
    for (int i = 0; i < halves; ++i) {
      text += fmt::format(
          "reduce_scatter(Y[{0}:{1}] [{2},4] -> x[{3}:{4}] [{5},4]) {{group=0}} s "
          "comm\n",
          4 * rows * i, 4 * rows * (i + 1), rows, 2 * rows * i, 2 * rows * (i + 1), rows / 2);
    }
    text += "add(x, x -> x2) s forward\n";
    for (int i = 0; i < halves; ++i) {
      text += fmt::format(
          "all_gather(x2[{0}:{1}] [{2},4] -> X[{3}:{4}] [{5},4]) {{group=0}} s "
          "comm\n",
          2 * rows * i, 2 * rows * (i + 1), rows / 2, 4 * rows * i, 4 * rows * (i + 1), rows);
    }
    return text + "copy(X -> out) s forward\n";
  };
  EXPECT_TRUE(are_equal(step(1), step(2)));
  // A half of what is gathered comes from the other half of the rank's rows.
  std::string crossed = step(2);
  const size_t at = crossed.find("x2[8:16]");
  crossed.replace(at, 8, "x2[0:8]");
  EXPECT_FALSE(are_equal(step(1), crossed));
}

TEST(PieceInterpreter, RowsOfAnotherStageAreThoseThatAreGathered) {
  const std::string recv =
      "recv(-> x) {group=1, peer=1, channel=0} s comm mb=0\nadd(x, x -> x2) s forward\n";
  const std::string use = "f(X -> out) s forward\nsend(x2) {group=1, peer=1, channel=1} s comm\n";
  const std::string whole = recv + "all_gather(x2 -> X) {group=0} s comm\n" + use;
  const auto half = [](int from, int to) {
    return fmt::format("all_gather(x2[{}:{}] [2,4] -> X[{}:{}] [4,4]) {{group=0}} s comm\n", from,
                       from + 8, to, to + 16);
  };
  EXPECT_TRUE(are_equal(whole, recv + half(0, 0) + half(8, 16) + use));
  EXPECT_FALSE(are_equal(whole, recv + half(0, 0) + half(0, 16) + use));
}

}  // namespace
}  // namespace braid
