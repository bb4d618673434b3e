#include "passes/context/context_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "ir/text.h"
#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "passes/streams/assign_streams.h"
#include "passes/streams/insert_events.h"

namespace braid {
namespace {

using ::testing::IsEmpty;

/// Keys and values of the ranks that come by, gradients made here (d) and on their way (t).
std::string tables(int num_ranks) {
  std::string text = fmt::format(
      "program step rank=0 ranks={} events=0\n"
      "stream s kind=compute priority=0\n"
      "group ring kind=context ranks=0,1\n"
      "buffer qkv f32 [64] activation persistent device\n"
      "buffer out f32 [64] activation persistent device\n"
      "buffer h f32 [64] activation persistent device\n",
      num_ranks);
  for (int i = 0; i <= num_ranks; ++i) {
    for (const char* const name : {"kv", "d", "t"}) {
      text += fmt::format("buffer {}{} f32 [64] activation step device\n", name, i);
    }
  }
  return text;
}

std::string shift(const std::string& x, const std::string& y) {
  return fmt::format("ring_shift({} -> {}) {{group=0, shift=1}} s comm mb=0 layer=0\n", x, y);
}
std::string step(int number) {
  return fmt::format("step(kv{} -> rw out) s forward mb=0 layer=0\n", number);
}
std::string undefine(const std::string& buffer, const char* phase) {
  return fmt::format("undefine(-> {}) s {} mb=0 layer=0\n", buffer, phase);
}
std::string task(const std::string& operands, const char* phase = "dgrad") {
  return fmt::format("{} s {} mb=0 layer=0\n", operands, phase);
}

PassResult arranged(const std::string& text) {
  PassResult result = context_ring(parse_program(text));
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  const PassResult again = context_ring(result.program);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}
std::string tasks_of(const PassResult& result, const std::string& head) {
  return print_program(result.program).substr(head.size());
}

std::string forward(int num_ranks) {
  std::string tasks = task("pack_kv(qkv -> kv0)", "forward") + step(0);
  for (int i = 1; i < num_ranks; ++i) {
    tasks += shift(fmt::format("kv{}", i - 1), fmt::format("kv{}", i)) + step(i);
  }
  return tasks;
}

TEST(ContextRing, SendsKeysAndValuesOnWhileTheyAreUsed) {
  const std::string head = tables(3);
  const PassResult result = arranged(head + forward(3));
  EXPECT_EQ(tasks_of(result, head), task("pack_kv(qkv -> kv0)", "forward") +
                                        undefine("kv1", "forward") + shift("kv0", "kv1") + step(0) +
                                        undefine("kv0", "forward") + undefine("kv2", "forward") +
                                        shift("kv1", "kv2") + step(1) + undefine("kv1", "forward") +
                                        step(2));
  EXPECT_EQ(result.report.summary, "started 2 of 2 transfers between context ranks early");
}

// Of 256 bytes: those that are used, and those that are on their way.
TEST(ContextRing, HoldsTwoKeysAndValuesHoweverManyRanksThereAre) {
  for (const int num_ranks : {2, 3, 4, 8}) {
    Program program = context_ring(parse_program(tables(num_ranks) + forward(num_ranks))).program;
    program = insert_events(assign_streams(std::move(program), {}).program).program;
    EXPECT_THAT(verify(program, 1), IsEmpty());
    EXPECT_EQ(program.streams.back().name, "comm.context");
    const std::array programs = {&program};
    EXPECT_EQ(plan_memory(programs).step_bytes, 2 * 256) << num_ranks << " ranks";
  }
}

// Gradients follow one step later: those of one rank are in transit while the next ones are
// computed.
TEST(ContextRing, SendsGradientsWhileTheNextAreMade) {
  const std::string head = tables(3);
  const std::string qkv_grad = task("linear_dgrad(out -> h)");
  const std::string other = "dgrad(h -> out) s dgrad mb=0 layer=1\n";
  const PassResult result = arranged(
      head + other + task("pack_kv(qkv -> kv0)") + shift("kv0", "kv1") + task("step(kv1 -> d1)") +
      shift("kv1", "kv2") + shift("d1", "t2") + task("step(kv2 -> d2)") +
      task("accumulate(t2 -> rw d2)") + shift("d2", "t3") + task("step(kv0 -> d3)") +
      task("accumulate(t3 -> rw d3)") + task("assemble(d3 -> out)"));
  EXPECT_EQ(tasks_of(result, head),
            other + task("pack_kv(qkv -> kv0)") + undefine("kv1", "dgrad") + shift("kv0", "kv1") +
                undefine("kv2", "dgrad") + shift("kv1", "kv2") + task("step(kv1 -> d1)") +
                undefine("t2", "dgrad") + shift("d1", "t2") + undefine("kv1", "dgrad") +
                task("step(kv2 -> d2)") + undefine("d1", "dgrad") +
                task("accumulate(t2 -> rw d2)") + undefine("t3", "dgrad") + shift("d2", "t3") +
                task("step(kv0 -> d3)") + undefine("d2", "dgrad") +
                task("accumulate(t3 -> rw d3)") + task("assemble(d3 -> out)"));
}

// What it sends is known since the forward. The gradients of a layer above are not passed.
TEST(ContextRing, StartsInTheBackwardInFrontOfTheMatrixProductsBeforeIt) {
  const std::string head = tables(2);
  const std::string above = "linear_dgrad(out -> h) s dgrad mb=0 layer=1\n";
  const std::string products =
      task("linear_wgrad(h -> rw out)", "wgrad") + task("linear_dgrad(h -> rw out)");
  const std::string pack = task("pack_kv(qkv -> kv0)");
  for (const std::string& communication :
       {shift("kv0", "kv1"),
        std::string("all_gather(kv0 -> kv1) {group=0} s comm mb=0 layer=0\n")}) {
    EXPECT_EQ(tasks_of(arranged(head + above + task("linear_wgrad(h -> rw out)", "wgrad") +
                                products + pack + communication + task("step(kv1 -> d1)")),
                       head),
              above + task("linear_wgrad(h -> rw out)", "wgrad") + undefine("kv1", "wgrad") + pack +
                  communication + products + undefine("kv0", "dgrad") + task("step(kv1 -> d1)"));
    EXPECT_EQ(tasks_of(arranged(head + above + task("linear_dgrad(h -> rw out)") + pack +
                                communication + task("step(kv1 -> d1)")),
                       head),
              above + undefine("kv1", "dgrad") + pack + communication +
                  task("linear_dgrad(h -> rw out)") + undefine("kv0", "dgrad") +
                  task("step(kv1 -> d1)"));
  }
}

TEST(ContextRing, LeavesOtherCommunication) {
  const std::string head = tables(2) + "group tp kind=tensor ranks=0,1\n";
  const std::string exchange = "all_to_all(kv0 -> kv1) {group=0} s comm mb=0 layer=0\n";
  const std::string tasks =
      task("make(-> kv0)") + task("other(-> out)") + exchange + task("step(kv1 -> d1)");
  EXPECT_EQ(tasks_of(arranged(tables(2) + tasks), tables(2)), tasks);
}

}  // namespace
}  // namespace braid
