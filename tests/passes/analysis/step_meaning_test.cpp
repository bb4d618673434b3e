#include "passes/analysis/step_meaning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/expect_error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/runner.h"
#include "support/random_program.h"
#include "support/symbolic.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> changes(const Program& before, const Program& after) {
  std::vector<std::string> lines;
  for (const Violation& violation :
       compare_meaning(StepMeaning(before), after, StepMeaning(after))) {
    lines.push_back(violation.message);
  }
  return lines;
}

const char* const kHeader =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group pipeline kind=pipeline ranks=0,1\n"
    "group alone kind=tensor ranks=0\n"
    "buffer w f32 [8] param persistent device\n"
    "buffer g f32 [8] main_grad persistent device\n"
    "buffer x f32 [8] activation step device\n"
    "buffer y f32 [8] activation step device\n"
    "buffer z f32 [4] activation step device\n"
    "buffer h f32 [8] activation step host\n";

std::vector<std::string> changes(const std::string& before, const std::string& after) {
  return changes(parse_program(kHeader + before), parse_program(kHeader + after));
}

constexpr const char* kRecv = "recv(-> {}) {{group=0, peer=1, channel=0}} s comm mb={}\n";

std::string recv(const char* to, int microbatch) {
  return fmt::format(fmt::runtime(kRecv), to, microbatch);
}

std::string send(const char* from, int microbatch) {
  return fmt::format("send({}) {{group=0, peer=1, channel=0}} s comm mb={}\n", from, microbatch);
}

TEST(StepMeaning, IsThatOfEveryOrderInWhichNothingConflicts) {
  EXPECT_THAT(changes("f(w -> x) s forward\ng(w -> y) s forward\nsum(x, y -> rw g) s wgrad\n",
                      "g(w -> x) s dgrad\nf(w -> y) s wgrad\nsum(y, x -> rw g) s forward\n"),
              IsEmpty());
}

TEST(StepMeaning, NamesTheTaskThatLeavesAnotherValue) {
  EXPECT_THAT(changes("f(w -> x) s forward\nf(x -> g) s forward\nf(x -> w) s forward\n",
                      "f(w -> x) s forward\nf(x -> g) s forward\nf(g -> w) s forward\n"),
              ElementsAre("meaning: persistent buffer w[0:8] holds another value at the end, made "
                          "by task 2 (f)"));
  EXPECT_THAT(
      changes("f(w -> g) s forward\n", "f(w -> g) s forward\nundefine(-> g[0:2]) s forward\n"),
      ElementsAre("meaning: persistent buffer g[0:2] is undefined at the end"));
}

TEST(StepMeaning, MovesOfBytesAndPiecesMakeNoDifference) {
  const std::string plain = "f(w -> x) s forward\nf(x -> g) s forward\n";
  EXPECT_THAT(changes(plain,
                      "f(w -> y) s forward\n"
                      "copy(y[0:3] -> x[0:3]) s forward\n"
                      "offload(y -> h) s forward\n"
                      "undefine(-> y) s forward\n"
                      "reload(h -> y) s forward\n"
                      "copy(y[3:8] -> x[3:8]) s forward\n"
                      "all_reduce(-> rw x) {group=1} s comm\n"
                      "f(x -> g) s forward\n"),
              IsEmpty());
  EXPECT_THAT(changes(plain,
                      "f(w -> y) s forward\n"
                      "copy(y[0:3] -> x[0:3]) s forward\n"
                      "copy(y[2:7] -> x[3:8]) s forward\n"
                      "f(x -> g) s forward\n"),
              SizeIs(1));
}

TEST(StepMeaning, KnowsMessagesByTheirLabels) {
  const std::string use = "f(x -> rw g) s wgrad\nf(y -> rw g) s wgrad\n";
  EXPECT_THAT(changes(recv("x", 0) + recv("y", 1) + use, recv("y", 1) + recv("x", 0) + use),
              IsEmpty());
  EXPECT_THAT(changes(recv("x", 0) + recv("y", 1) + use, recv("y", 0) + recv("x", 1) + use),
              SizeIs(1));
  // Two of one label come in their order.
  EXPECT_THAT(changes(recv("x", 0) + recv("y", 0) + use, recv("y", 0) + recv("x", 0) + use),
              SizeIs(1));
}

TEST(StepMeaning, KnowsWhatOthersGetToSee) {
  const std::string made = "f(w -> x) s forward\ng(w -> y) s forward\n";
  EXPECT_THAT(changes(made + send("x", 0) + send("y", 1), made + send("y", 1) + send("x", 0)),
              IsEmpty());
  EXPECT_THAT(changes(made + send("x", 0) + send("y", 1), made + send("x", 1) + send("y", 0)),
              ElementsAre(HasSubstr("step has other messages or collectives than before")));
  EXPECT_THAT(changes(made + send("x", 0), made), SizeIs(1));
  const std::string gather = "all_gather(z -> x) {group=0} s comm\n";
  const std::string early = "f(w[0:4] -> z) s forward\n";
  // Made again, as recompute does: nobody sees anything new.
  EXPECT_THAT(changes(early + gather, early + gather + gather), IsEmpty());
  EXPECT_THAT(changes(early + gather, "f(w[4:8] -> z) s forward\n" + gather), SizeIs(1));
}

/// One change that keeps the program well formed; it may keep the meaning, too.
Program mutated(Program program, std::mt19937_64& random) {
  const size_t at = random() % (program.tasks.size() - 1);
  if (random() % 3 == 0) {
    program.tasks.erase(program.tasks.begin() + static_cast<ptrdiff_t>(at));
    return program;
  }
  if (random() % 2 == 0) {
    std::swap(program.tasks[at], program.tasks[at + 1]);
    return program;
  }
  Task& task = program.tasks[at];
  BufferRange& range = program.operands[task.operands_begin];
  const int64_t room = program.buffers[range.buffer.index()].num_elems() - range.end;
  const int64_t shift = range.begin > 0 ? -1 : room > 0 ? 1 : 0;
  range.begin += shift;
  range.end += shift;
  return program;
}

bool same_persistent(const Program& program, const SymbolicState& a, const SymbolicState& b) {
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    if (program.buffers[i].lifetime == Lifetime::kPersistent && a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

// A product with an activation function is the two, whatever keeps what one hands to the other.
TEST(StepMeaning, OfAFusedProductIsThatOfItsParts) {
  const std::string tables =
      "program step rank=0 ranks=1 events=0\n"
      "stream s kind=compute priority=0\n"
      "buffer x f32 [4,3] activation persistent device\n"
      "buffer w f32 [4,3] param persistent device\n"
      "buffer v f32 [3,2] param persistent device\n"
      "buffer u f32 [3,2] param persistent device\n"
      "buffer g f32 [4,4] activation persistent device\n"
      "buffer y f32 [4,2] activation persistent device\n"
      "buffer d f32 [2,4,2] activation step device\n"
      "buffer dg f32 [4,4] activation persistent device\n";
  const auto changed = [&](const std::string& before, const std::string& after) {
    return changes(parse_program(tables + before), parse_program(tables + after));
  };
  const std::string linear = "linear(x, w -> g) {has_bias=false, adds_bias=true} s forward\n";
  const std::string two = linear + "swiglu(g -> y) s forward\n";
  EXPECT_THAT(changed(two, "linear_swiglu(x, w -> g, y) s forward\n"), IsEmpty());
  EXPECT_THAT(changed(two, "linear_swiglu(w, x -> g, y) s forward\n"), SizeIs(2));
  const std::string both = "linear_dgrad_swiglu_backward(x, v, g -> dg) s dgrad\n";
  const std::string dgrad = "linear_dgrad(x, v -> d[8:16] [4,2]) {accumulate=false} s dgrad\n";
  const std::string backward = "swiglu_backward(g, d[8:16] [4,2] -> dg) s dgrad\n";
  EXPECT_THAT(changed(dgrad + backward, both), IsEmpty());
  EXPECT_THAT(changed(linear + dgrad + backward, linear + both), IsEmpty());
  EXPECT_THAT(changed(linear + dgrad + backward, both + linear), SizeIs(1));
  EXPECT_THAT(changed(dgrad + backward, "linear_dgrad_swiglu_backward(x, u, g -> dg) s dgrad\n"),
              SizeIs(1));
}

TEST(StepMeaning, OfAFusedProductOfExpertsIsThatOfItsParts) {
  const std::string tables =
      "program step rank=0 ranks=1 events=0\n"
      "stream s kind=compute priority=0\n"
      "buffer x f32 [4,3] activation persistent device\n"
      "buffer w f32 [8,3] param persistent device\n"
      "buffer v f32 [6,2] param persistent device\n"
      "buffer o i32 [3] activation persistent device\n"
      "buffer o2 i32 [3] activation persistent device\n"
      "buffer p f32 [4] activation persistent device\n"
      "buffer dp f32 [4] activation persistent device\n"
      "buffer g f32 [4,4] activation persistent device\n"
      "buffer y f32 [4,2] activation persistent device\n"
      "buffer d f32 [2,4,2] activation step device\n"
      "buffer dg f32 [4,4] activation persistent device\n";
  const auto changed = [&](const std::string& before, const std::string& after) {
    return changes(parse_program(tables + before), parse_program(tables + after));
  };
  const std::string two =
      "grouped_linear(x, w, o -> g) s forward\nrouted_swiglu(g, p, o -> y) s forward\n";
  EXPECT_THAT(changed(two, "grouped_linear_swiglu(x, w, o, p -> g, y) s forward\n"), IsEmpty());
  EXPECT_THAT(changed(two, "grouped_linear_swiglu(x, w, o2, p -> g, y) s forward\n"), SizeIs(2));
  EXPECT_THAT(changed(two, "grouped_linear_swiglu(x, w, o, dp -> g, y) s forward\n"), SizeIs(1));
  const std::string both =
      "grouped_linear_dgrad_swiglu_backward(x, v, o, g, p -> dg, dp) s dgrad\n";
  const std::string apart =
      "grouped_linear_dgrad(x, v, o -> d[8:16] [4,2]) s dgrad\n"
      "routed_swiglu_backward(g, p, d[8:16] [4,2], o -> dg, dp) s dgrad\n";
  EXPECT_THAT(changed(apart, both), IsEmpty());
  EXPECT_THAT(changed(two + apart, two + both), IsEmpty());
  EXPECT_THAT(changed(two + apart, both + two), SizeIs(2));
}

const std::string kRowTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "buffer a f32 [6,4] activation persistent device\n"
    "buffer b f32 [6,4] activation persistent device\n"
    "buffer g f32 [6,4] activation persistent device\n"
    "buffer y f32 [6,2] activation persistent device\n"
    "buffer d f32 [6,2] activation persistent device\n"
    "buffer dg f32 [6,4] activation persistent device\n";

std::vector<std::string> row_changes(const std::string& before, const std::string& after) {
  return changes(parse_program(kRowTables + before), parse_program(kRowTables + after));
}

TEST(StepMeaning, OfAnActivationInPiecesIsThatOfTheWhole) {
  const std::string whole = "swiglu(g -> y) s forward\n";
  const std::string back = "swiglu(g[8:24] [4,4] -> y[4:12] [4,2]) s forward\n";
  const std::string front = "swiglu(g[0:8] [2,4] -> y[0:4] [2,2]) s forward\n";
  // What is read is one value, one of each row block, or has a border inside of a row.
  for (const std::string made :
       {"", "f(a -> g) s forward\n", "f(a -> g[8:24]) s forward\nf(b -> g[0:8]) s forward\n",
        "f(a -> g[3:10]) s forward\n", "copy(a[1:9] -> g[8:16]) s forward\n"}) {
    EXPECT_THAT(row_changes(made + whole, made + back + front), IsEmpty()) << made;
    EXPECT_THAT(row_changes(made + whole, made + back), SizeIs(1)) << made;
  }
  // Other rows, rows at another place, and another order of pieces that overlap.
  EXPECT_THAT(row_changes(whole, back + "swiglu(g[4:12] [2,4] -> y[0:4] [2,2]) s forward\n"),
              SizeIs(1));
  EXPECT_THAT(row_changes(back, "swiglu(g[8:24] [4,4] -> y[2:10] [4,2]) s forward\n"), SizeIs(1));
  EXPECT_THAT(row_changes("gelu(a -> b) s forward\n", "gelu(b -> a) s forward\n"), SizeIs(2));
  const std::string backward = "swiglu_backward(g, d -> dg) s dgrad\n";
  const std::string backward_front =
      "swiglu_backward(g[0:12] [3,4], d[0:6] [3,2] -> dg[0:12] [3,4]) s dgrad\n";
  EXPECT_THAT(
      row_changes(backward,
                  "swiglu_backward(g[12:24] [3,4], d[6:12] [3,2] -> dg[12:24] [3,4]) s dgrad\n" +
                      backward_front),
      IsEmpty());
  EXPECT_THAT(
      row_changes(backward,
                  "swiglu_backward(g[12:24] [3,4], d[4:10] [3,2] -> dg[12:24] [3,4]) s dgrad\n" +
                      backward_front),
      SizeIs(1));
}

/// Activation functions of some rows, and tasks that read and write any elements.
Program random_rows(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  };
  const auto any = [&](const char* names) { return std::string(1, names[below(3)]); };
  std::string tasks;
  for (int64_t left = 3 + below(8); left > 0; --left) {
    const int64_t begin = below(6);
    const int64_t rows = 1 + below(6 - begin);
    const auto range = [&](const std::string& buffer, int64_t first, int64_t width) {
      return fmt::format("{}[{}:{}] [{},{}]", buffer, first * width, (first + rows) * width, rows,
                         width);
    };
    const int64_t other = below(7 - rows);
    switch (below(5)) {
      case 0:
        tasks += fmt::format("gelu({} -> {}) s forward\n", range(any("abg"), begin, 4),
                             range("dg", other, 4));
        break;
      case 1:
        tasks += fmt::format("swiglu({} -> {}) s forward\n", range(any("abg"), begin, 4),
                             range("y", other, 2));
        break;
      case 2:
        tasks += fmt::format("swiglu_backward({}, {} -> {}) s forward\n", range("g", begin, 4),
                             range("y", other, 2), range("a", begin, 4));
        break;
      case 3:
        tasks += fmt::format("copy({0}[{1}:{2}] -> g[{1}:{2}]) s forward\n", any("abd"), begin,
                             begin + rows);
        break;
      default:
        tasks += fmt::format("f({}[{}:{}] -> {}[{}:{}]) s forward\n", any("aby"), other, other + 2,
                             any("gbd"), begin, begin + rows);
    }
  }
  return parse_program(kRowTables + tasks);
}

TEST(StepMeaning, OfRowsDiffersExactlyWhereAnElementDoes) {
  int num_equal = 0;
  constexpr int kNumPrograms = 3000;
  for (uint64_t seed = 0; seed < kNumPrograms; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Program before = random_rows(seed);
    const Program after = mutated(before, random);
    const bool same = same_persistent(before, run_in_order(before), run_in_order(after));
    num_equal += same ? 1 : 0;
    ASSERT_EQ(changes(before, after).empty(), same)
        << print_program(before) << print_program(after);
  }
  EXPECT_GT(num_equal, kNumPrograms / 10);
  EXPECT_LT(num_equal, kNumPrograms * 9 / 10);
}

// Against a reference that hashes every element on its own.
TEST(StepMeaning, DiffersExactlyWhereAnElementDoes) {
  int num_equal = 0;
  constexpr int kNumPrograms = 3000;
  for (uint64_t seed = 0; seed < kNumPrograms; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Program before = random_program(seed, {.num_tasks = 8 + static_cast<int>(seed % 30),
                                                 .num_buffers = 5,
                                                 .more_communication = true});
    const Program after = mutated(before, random);
    const bool same = same_persistent(before, run_in_order(before), run_in_order(after));
    num_equal += same ? 1 : 0;
    ASSERT_EQ(changes(before, after).empty(), same);
  }
  // Neither side of the comparison is rare.
  EXPECT_GT(num_equal, kNumPrograms / 10);
  EXPECT_LT(num_equal, kNumPrograms * 9 / 10);
}

TEST(StepMeaning, TheRunnerNamesThePassThatChangesIt) {
  const Program program = parse_program(std::string(kHeader) +
                                        "f(w -> x) s forward\nf(x -> rw g) s wgrad\n"
                                        "h(x -> rw g) s wgrad\n");
  Pass swap{.name = "swap", .summary = "Swaps sums.", .run = [](Program it, const PassContext&) {
              std::swap(it.tasks[1], it.tasks[2]);
              return PassResult{std::move(it), {.changed = true}};
            }};
  const auto run = [&] { run_passes(program, std::span(&swap, 1), {.may_change_rounding = true}); };
  for (const bool changes_rounding : {false, true}) {
    swap.changes_rounding = changes_rounding;
    EXPECT_THAT(message_of<InternalError>(run),
                HasSubstr("pass swap changes what program step computes: meaning: persistent "
                          "buffer g[0:8] holds another value at the end, made by task 2 (f)"));
  }
}

}  // namespace
}  // namespace braid
