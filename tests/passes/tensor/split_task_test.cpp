#include "passes/tensor/split_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/expect_error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "ops/op.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "buffer x f32 [40,4] io persistent device\n"
    "buffer w f32 [48,4] param persistent device\n"
    "buffer b f32 [48] param persistent device\n"
    "buffer y f32 [40,48] io persistent device\n"
    "buffer g f32 [48,4] main_grad persistent device\n"
    "buffer gb f32 [48] main_grad persistent device\n"
    "buffer norm f32 [4] param persistent device\n"
    "buffer n f32 [40,4] io persistent device\n"
    "buffer r f32 [40] io persistent device\n"
    "buffer qkv f32 [40,12] io persistent device\n"
    "buffer a f32 [40,4] io persistent device\n"
    "buffer lse f32 [5,2,8] io persistent device\n";

Program parse(const std::string& tasks) {
  return parse_program(kTables + tasks);
}

std::string split(const std::string& task, int64_t pieces) {
  const Program program = split_task(parse(task), TaskId(0), pieces);
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  for (const Task& piece : program.tasks) {
    check_spec(program.spec(piece));
  }
  const std::string text = print_program(program);
  return text.substr(text.find("device\n", text.find("buffer lse")) + 7);
}

// Four rows of x have 16 elements.
TEST(SplitTask, CutsProductsByRows) {
  EXPECT_EQ(split("linear(x, w, b -> y) {has_bias=true, adds_bias=true} s forward mb=0\n", 2),
            "linear(x[0:80] [20,4], w, b -> y[0:960] [20,48]) {has_bias=true, adds_bias=true} s "
            "forward mb=0\n"
            "linear(x[80:160] [20,4], w, b -> y[960:1920] [20,48]) {has_bias=true, "
            "adds_bias=true} s forward mb=0\n");
  EXPECT_EQ(split("linear_dgrad(y, w -> x) {accumulate=false} s dgrad mb=0\n", 3),
            "linear_dgrad(y[0:576] [12,48], w -> x[0:48] [12,4]) {accumulate=false} s dgrad mb=0\n"
            "linear_dgrad(y[576:1152] [12,48], w -> x[48:96] [12,4]) {accumulate=false} s dgrad "
            "mb=0\n"
            "linear_dgrad(y[1152:1920] [16,48], w -> x[96:160] [16,4]) {accumulate=false} s dgrad "
            "mb=0\n");
}

// The first piece has the bias gradient.
TEST(SplitTask, CutsWeightGradientsByFeatures) {
  EXPECT_EQ(
      split("linear_wgrad(x, y -> rw g, rw gb) {has_bias=true, accumulate=true} s wgrad mb=0\n", 2),
      "linear_wgrad(x, y -> rw g[0:64] [16,4], rw gb) {has_bias=true, accumulate=true, "
      "first_feature=0, end_feature=16} s wgrad mb=0\n"
      "linear_wgrad(x, y -> rw g[64:192] [32,4]) {has_bias=false, accumulate=true, "
      "first_feature=16, end_feature=48} s wgrad mb=0\n");
}

// r has one element per row.
TEST(SplitTask, KeepsWhatAllRowsReadWhole) {
  EXPECT_EQ(split("rmsnorm(x, norm -> n, r) {epsilon=1e-05} s forward mb=0\n", 2),
            "rmsnorm(x[0:64] [16,4], norm -> n[0:64] [16,4], r[0:16]) {epsilon=1e-05} s "
            "forward mb=0\n"
            "rmsnorm(x[64:160] [24,4], norm -> n[64:160] [24,4], r[16:40]) {epsilon=1e-05} s "
            "forward mb=0\n");
}

TEST(SplitTask, KeepsSequencesWhole) {
  const std::string attributes =
      " {heads=2, kv_heads=2, head_size=2, sequence=8, scale=1.0} s forward mb=0\n";
  EXPECT_EQ(
      split("attention(qkv -> a, lse)" + attributes, 3),
      "attention(qkv[0:96] [8,12] -> a[0:32] [8,4], lse[0:16] [1,2,8])" + attributes +
          "attention(qkv[96:288] [16,12] -> a[32:96] [16,4], lse[16:48] [2,2,8])" + attributes +
          "attention(qkv[288:480] [16,12] -> a[96:160] [16,4], lse[48:80] [2,2,8])" + attributes);
}

TEST(SplitTask, OnePieceIsTheTask) {
  const std::string task = "linear_wgrad(x, y -> rw g) {has_bias=false, accumulate=true} s wgrad\n";
  EXPECT_EQ(split(task, 1), task);
}

TEST(SplitTask, RefusesWhatHasNoPieces) {
  const Program norm = parse(
      "rmsnorm_backward(x, norm, r, n -> a, rw norm) {has_d_sum=false, accumulate=true} s dgrad\n");
  EXPECT_EQ(split_rule(norm.spec(norm.tasks[0])), std::nullopt);
  EXPECT_THAT(message_of<InternalError>([&] { split_task(norm, TaskId(0), 2); }),
              HasSubstr("a task of op rmsnorm_backward cannot be cut into 2"));
  const Program one_unit = parse("copy(x[0:16] [4,4] -> n[0:16] [4,4]) s forward\n");
  EXPECT_EQ(split_rule(one_unit.spec(one_unit.tasks[0])), std::nullopt);
}

TEST(SplitTask, RefusesRangesThatAreNoPieces) {
  const Program program = parse("copy(x -> n) s forward\n");
  EXPECT_EQ(piece_of_task(program, TaskId(0), {16, 40}).operands[1],
            (BufferRange{BufferId(7), 64, 160}));
  for (const SplitRange& wrong :
       {SplitRange{0, 6}, SplitRange{6, 40}, SplitRange{16, 16}, SplitRange{0, 48}}) {
    EXPECT_THAT(message_of<InternalError>([&] { piece_of_task(program, TaskId(0), wrong); }),
                HasSubstr("of 40 are no piece of whole units of 4"));
  }
}

}  // namespace
}  // namespace braid
