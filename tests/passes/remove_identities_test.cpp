#include "passes/remove_identities.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/text.h"
#include "ir/verify.h"
#include "support/random_program.h"
#include "support/symbolic.h"
#include "support/thinned.h"

namespace braid {
namespace {

const char* const kHeader =
    "program step rank=0 ranks=2 events=0\n"
    "stream compute kind=compute priority=0\n"
    "group alone kind=tensor ranks=0\n"
    "group dp kind=data ranks=0,1\n"
    "buffer x f32 [8] activation persistent device\n"
    "buffer y f32 [8] activation persistent device\n";

TEST(RemoveIdentities, RemovesAllReducesOverOneRankAndCopiesOntoThemselves) {
  const PassResult result = remove_identities(
      parse_program(std::string(kHeader) + "all_reduce(-> rw x) {group=0} compute comm\n"
                                           "all_reduce(-> rw x) {group=1} compute comm\n"
                                           "copy(x -> x) compute forward\n"
                                           "copy(x -> y) compute forward\n"
                                           "copy(x[0:4] -> x[4:8]) compute forward\n"
                                           "copy(x[2:4] -> x[2:4]) compute forward\n"
                                           "scale(x -> x) compute forward\n"));
  EXPECT_EQ(print_program(result.program), std::string(kHeader) +
                                               "all_reduce(-> rw x) {group=1} compute comm\n"
                                               "copy(x -> y) compute forward\n"
                                               "copy(x[0:4] -> x[4:8]) compute forward\n"
                                               "scale(x -> x) compute forward\n");
  EXPECT_TRUE(result.report.changed);
  EXPECT_EQ(result.report.num_changes, 3);
  EXPECT_EQ(result.report.summary, "removed 3 of 7 tasks");
}

TEST(RemoveIdentities, LeavesOtherProgramsAsTheyAre) {
  const std::string text = std::string(kHeader) + "copy(x -> y) compute forward\n";
  const PassResult result = remove_identities(parse_program(text));
  EXPECT_EQ(print_program(result.program), text);
  EXPECT_FALSE(result.report.changed);
  EXPECT_EQ(result.report.num_changes, 0);
}

TEST(RemoveIdentities, LeavesEventsOnlyWhereItRemovesNothing) {
  std::string text = std::string(kHeader) + "copy(x -> y) compute forward record=e0\n";
  text.replace(text.find("events=0"), 8, "events=1");
  EXPECT_EQ(remove_identities(parse_program(text)).program.num_events, 1u);
  EXPECT_EQ(
      remove_identities(parse_program(text + "copy(x -> x) compute forward\n")).program.num_events,
      0u);
}

/// Programs over rank 0 of "alone" and of the pair "tp".
class ForwardIdentities : public testing::Test {
 protected:
  static constexpr const char* kHead =
      "program step rank=0 ranks=2 events=0\n"
      "stream compute kind=compute priority=0\n"
      "group alone kind=tensor ranks=0\n"
      "group tp kind=tensor ranks=0,1\n"
      "buffer x f32 [8] activation step device\n"
      "buffer y f32 [8] activation step device\n"
      "buffer z f32 [8] activation step device\n"
      "buffer kept f32 [8] activation persistent device\n"
      "buffer on_host f32 [8] activation step host\n"
      "buffer long f32 [16] activation step device\n";

  static void expect(const std::string& before, const std::string& after) {
    const PassResult result = remove_identities(parse_program(kHead + before));
    EXPECT_EQ(print_program(result.program), kHead + after) << "before:\n" << before;
    EXPECT_EQ(result.report.changed, before != after);
  }
  static void expect_kept(const std::string& tasks) { expect(tasks, tasks); }
};

TEST_F(ForwardIdentities, ReadersReadWhatTheIdentityRead) {
  expect(
      "gelu(kept -> x) compute forward\n"
      "identity(x -> y) {group=1} compute forward\n"
      "linear(y, y -> z) compute forward\n"
      "add(y[2:4], x[0:2] -> z[0:2]) compute forward\n",
      "gelu(kept -> x) compute forward\n"
      "linear(x, x -> z) compute forward\n"
      "add(x[2:4], x[0:2] -> z[0:2]) compute forward\n");
}

TEST_F(ForwardIdentities, OfAPartOfABufferShiftsItsReaders) {
  expect(
      "fill(-> long) {value=1.0} compute forward\n"
      "identity(long[8:16] -> y) {group=1} compute forward\n"
      "copy(y[1:3] -> kept[0:2]) compute forward\n",
      "fill(-> long) {value=1.0} compute forward\n"
      "copy(long[9:11] -> kept[0:2]) compute forward\n");
}

TEST_F(ForwardIdentities, ChainsEndAtTheirStart) {
  expect(
      "fill(-> x) {value=1.0} compute forward\n"
      "identity(x -> y) {group=1} compute forward\n"
      "identity(y -> z) {group=0} compute forward\n"
      "gelu(z -> kept) compute forward\n",
      "fill(-> x) {value=1.0} compute forward\n"
      "gelu(x -> kept) compute forward\n");
}

TEST_F(ForwardIdentities, CollectivesOfOneRankAreIdentities) {
  for (const char* const task :
       {"all_reduce(x -> y) {group=0}", "all_gather(x -> y) {group=0}",
        "reduce_scatter(x -> y) {group=0}", "all_to_all(x -> y) {group=0}",
        "broadcast(x -> y) {group=0, root=0}", "reduce(x -> y) {group=0, root=0}",
        "ring_shift(x -> y) {group=0, shift=1}"}) {
    expect(std::string("fill(-> x) {value=1.0} compute forward\n") + task +
               " compute comm\ngelu(y -> kept) compute forward\n",
           "fill(-> x) {value=1.0} compute forward\n"
           "gelu(x -> kept) compute forward\n");
  }
}

TEST_F(ForwardIdentities, CollectivesOfTwoRanksAndOtherCopiesStay) {
  for (const char* const task :
       {"all_reduce(x -> y) {group=1}", "ring_shift(x -> y) {group=1, shift=0}", "copy(x -> y)"}) {
    expect_kept(std::string("fill(-> x) {value=1.0} compute forward\n") + task +
                " compute comm\ngelu(y -> kept) compute forward\n");
  }
}

TEST_F(ForwardIdentities, WithoutReadersJustGo) {
  expect(
      "fill(-> x) {value=1.0} compute forward\n"
      "identity(x -> y) {group=1} compute forward\n"
      "fill(-> x) {value=2.0} compute forward\n",
      "fill(-> x) {value=1.0} compute forward\n"
      "fill(-> x) {value=2.0} compute forward\n");
}

// The copy is needed: its source changes while the copy is still read.
TEST_F(ForwardIdentities, StayWhereTheSourceIsWrittenBeforeTheLastReader) {
  const std::string begin =
      "fill(-> x) {value=1.0} compute forward\n"
      "identity(x -> y) {group=1} compute forward\n";
  expect_kept(begin +
              "fill(-> x[3:4]) {value=2.0} compute forward\n"
              "gelu(y -> kept) compute forward\n");
  expect_kept(begin + "add(y, kept -> x) compute forward\n");
  expect_kept(begin +
              "scale(-> rw x) compute forward\n"
              "gelu(y -> kept) compute forward\n");
  expect(begin +
             "gelu(y -> kept) compute forward\n"
             "fill(-> x) {value=2.0} compute forward\n",
         "fill(-> x) {value=1.0} compute forward\n"
         "gelu(x -> kept) compute forward\n"
         "fill(-> x) {value=2.0} compute forward\n");
}

TEST_F(ForwardIdentities, LookAtTheRangeThatTheyRead) {
  expect(
      "fill(-> long) {value=1.0} compute forward\n"
      "identity(long[8:16] -> y) {group=1} compute forward\n"
      "fill(-> long[0:8]) {value=2.0} compute forward\n"
      "gelu(y -> kept) compute forward\n",
      "fill(-> long) {value=1.0} compute forward\n"
      "fill(-> long[0:8]) {value=2.0} compute forward\n"
      "gelu(long[8:16] -> kept) compute forward\n");
}

// The second link of a chain lives longer than the first: only that one has to stay.
TEST_F(ForwardIdentities, KeepTheLinkOfAChainThatIsNeeded) {
  expect(
      "fill(-> x) {value=1.0} compute forward\n"
      "identity(x -> y) {group=1} compute forward\n"
      "identity(y -> z) {group=1} compute forward\n"
      "fill(-> x) {value=2.0} compute forward\n"
      "gelu(z -> kept) compute forward\n",
      "fill(-> x) {value=1.0} compute forward\n"
      "identity(x -> z) {group=1} compute forward\n"
      "fill(-> x) {value=2.0} compute forward\n"
      "gelu(z -> kept) compute forward\n");
}

TEST_F(ForwardIdentities, StayWhereTheResultIsMoreThanTheirCopy) {
  const std::string fill = "fill(-> x) {value=1.0} compute forward\n";
  // Written again, in part or whole; added to; written in part; read before; not of one step.
  expect_kept(fill +
              "identity(x -> y) {group=1} compute forward\n"
              "fill(-> y[0:2]) {value=3.0} compute forward\n"
              "gelu(y -> kept) compute forward\n");
  expect_kept(fill +
              "identity(x -> y) {group=1} compute forward\n"
              "scale(-> rw y) compute forward\n"
              "gelu(y -> kept) compute forward\n");
  expect_kept(fill +
              "identity(x[0:4] -> y[0:4]) {group=1} compute forward\n"
              "gelu(y[0:4] -> kept[0:4]) compute forward\n");
  expect_kept(fill +
              "gelu(y -> kept) compute forward\n"
              "identity(x -> y) {group=1} compute forward\n");
  expect_kept(fill + "identity(x -> kept) {group=1} compute forward\n");
  expect_kept(fill +
              "identity(x -> on_host) {group=1} compute forward\n"
              "gelu(on_host -> kept) compute forward\n");
}

TEST_F(ForwardIdentities, OfWeightsAndInputsGoToo) {
  expect(
      "identity(kept -> y) {group=1} compute forward\n"
      "gelu(y -> z) compute forward\n"
      "fill(-> kept) {value=2.0} compute optimizer\n",
      "gelu(kept -> z) compute forward\n"
      "fill(-> kept) {value=2.0} compute optimizer\n");
}

/// The program with copies between two ranges as identities, or the other way round.
Program renamed(const Program& program, std::string_view from, const std::string& to) {
  ProgramBuilder builder(program.name, program.rank, program.num_ranks);
  for (const Buffer& buffer : program.buffers) {
    builder.add_buffer(buffer);
  }
  for (const Stream& stream : program.streams) {
    builder.add_stream(stream);
  }
  for (const Group& group : program.groups) {
    builder.add_group(group);
  }
  for (const Task& task : program.tasks) {
    OpSpec spec = program.spec(task);
    const auto operands = program.operands_of(task);
    if (spec.op == from && operands[0] != operands[1]) {
      spec.op = to;
      spec.attributes.clear();
      if (to == "identity") {
        spec.attributes.push_back({"group", int64_t{0}});
      }
    }
    builder.add_task(spec, operands, task.stream, {.phase = task.label.phase});
  }
  return builder.take();
}

/// What persistent buffers hold in the end, if identities are copies.
SymbolicState meaning_of(const Program& program) {
  SymbolicState state = run_in_order(renamed(program, "identity", "copy"));
  for (size_t i = 0; i < state.size(); ++i) {
    if (program.buffers[i].lifetime == Lifetime::kStep) {
      state[i].clear();
    }
  }
  return state;
}

TEST(RemoveIdentities, KeepsTheMeaningOfRandomPrograms) {
  int64_t num_removed = 0;
  int64_t num_identities = 0;
  for (uint64_t seed = 0; seed < thinned_count(2000u, 5); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program =
        renamed(random_program(seed, {.num_tasks = 30,
                                      .num_buffers = 5 + static_cast<int>(seed % 30),
                                      .self_copies = false}),
                "copy", "identity");
    const PassResult result = remove_identities(program);
    ASSERT_EQ(meaning_of(result.program), meaning_of(program));
    ASSERT_TRUE(verify(result.program, 1, Ordering::kProgramOrder).empty());
    num_removed += result.report.num_changes;
    num_identities += std::ranges::count_if(
        program.tasks, [&](const Task& task) { return program.spec(task).op == "identity"; });
  }
  // Most have a source or a result that is written again; enough have not.
  EXPECT_GT(num_removed, thinned_count(1000, 5));
  EXPECT_GT(num_identities, num_removed);
}

}  // namespace
}  // namespace braid
