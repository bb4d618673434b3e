#include "passes/context/delay_context_wgrad.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ir/text.h"
#include "passes/streams/assign_streams.h"
#include "sim/fixed_costs.h"
#include "support/symbolic.h"

namespace braid {
namespace {

using Names = std::vector<std::string>;

// A rank that exchanges heads for sequence, with weights of three products (g0 of the layer's last
// one). What a weight gradient reads has 64 elements, which is what it takes.
const std::string kTables =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group context.inner kind=context ranks=0,1\n"
    "group data kind=data ranks=0,1\n"
    "buffer x f32 [64] activation step device\n"
    "buffer d f32 [64] activation step device\n"
    "buffer h f32 [64] activation step device\n"
    "buffer e f32 [64] activation step device\n"
    "buffer f f32 [64] activation step device\n"
    "buffer y f32 [64] activation step device\n"
    "buffer g0 f32 [64] main_grad persistent device\n"
    "buffer g1 f32 [64] main_grad persistent device\n"
    "buffer g2 f32 [64] main_grad persistent device\n"
    "buffer n f32 [64] grad persistent device\n";

const std::string kBegin = "fill(-> x) s dgrad mb=0 vs=0 layer=0\n";

std::string wgrad(int number, int microbatch = 0) {
  return fmt::format("linear_wgrad(x -> rw g{}) s wgrad mb={} vs=0 layer=0\n", number, microbatch);
}
std::string dgrad(const std::string& operands, const char* phase = "dgrad") {
  return fmt::format("d_op({}) s {} mb=0 vs=0 layer=0\n", operands, phase);
}
std::string call(const std::string& op, const std::string& operands) {
  return fmt::format("{}({}) {{group=0}} s comm mb=0 vs=0 layer=0\n", op, operands);
}
std::string exchange(const std::string& operands) {
  return call("all_to_all", operands);
}

// fc2, fc1 and proj, the exchange of the incoming gradient, the attention, and the exchange of its
// results.
const std::string kBackward = kBegin + wgrad(0) + dgrad("x -> d") + wgrad(1) + dgrad("d -> h") +
                              wgrad(2) + exchange("h -> e") + dgrad("e -> f") + exchange("f -> y") +
                              dgrad("y -> d");

PassResult delay(const std::string& tasks, const CostModel* model = nullptr) {
  const Program program = parse_program(kTables + tasks);
  const PassContext context{.cost_model = model};
  PassResult result = delay_context_wgrad(program, context);
  EXPECT_EQ(run_in_order(result.program), run_in_order(program));
  EXPECT_EQ(result.report.changed, !(result.program == program));
  const PassResult again = delay_context_wgrad(result.program, context);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

std::string tasks_of(const PassResult& result) {
  return print_program(result.program).substr(kTables.size());
}

TEST(DelayContextWgrad, EachExchangeOfABackwardGetsOne) {
  const PassResult result = delay(kBackward);
  EXPECT_EQ(tasks_of(result), kBegin + wgrad(0) + dgrad("x -> d") + dgrad("d -> h") +
                                  exchange("h -> e") + wgrad(1) + dgrad("e -> f") +
                                  exchange("f -> y") + wgrad(2) + dgrad("y -> d"));
  EXPECT_EQ(result.report.num_changes, 2);
  EXPECT_EQ(result.report.summary,
            "moved 2 weight gradients behind 2 calls of context and expert ranks");
}

TEST(DelayContextWgrad, TheExchangesThenRunBesideThem) {
  const Program streams = assign_streams(delay(kBackward).program, AssignStreamsOptions{}).program;
  for (const Task& task : streams.tasks) {
    const bool beside = streams.streams[task.stream.index()].name == "comm.context";
    EXPECT_EQ(beside, streams.spec(task).op == "all_to_all");
  }
  const Program as_it_was =
      assign_streams(parse_program(kTables + kBackward), AssignStreamsOptions{}).program;
  EXPECT_EQ(as_it_was.streams.size(), 1u) << "nothing can run beside them";
}

// The model: a weight gradient takes 64 ns, and what is beside a call 110% of it.
TEST(DelayContextWgrad, TakesAsManyAsTheCallTakes) {
  FixedCosts costs(small_cluster(2, 2));
  costs.latency_ns = 36;  // 100 with the 64 elements
  EXPECT_EQ(tasks_of(delay(kBackward, &costs)),
            kBegin + dgrad("x -> d") + dgrad("d -> h") + exchange("h -> e") + wgrad(0) +
                dgrad("e -> f") + exchange("f -> y") + wgrad(1) + wgrad(2) + dgrad("y -> d"))
      << "the last exchange has two, and the first what is left";
}

TEST(DelayContextWgrad, ReductionsOfGatheredKeysToo) {
  const std::string scatter = call("reduce_scatter", "f -> y[0:32]");
  EXPECT_EQ(tasks_of(delay(kBegin + wgrad(0) + dgrad("x -> f") + scatter + dgrad("y[0:32] -> d"))),
            kBegin + dgrad("x -> f") + scatter + wgrad(0) + dgrad("y[0:32] -> d"));
}

// Rows of experts, in blocks of bytes or copies for hosts; what data ranks exchange is none of the
// backward's.
TEST(DelayContextWgrad, ExchangesOfRowsOfExpertsToo) {
  for (const std::string type : {"u8", "f32"}) {
    for (const std::string kind : {"expert", "data"}) {
      std::string tables = kTables;
      const std::string context = "group context.inner kind=context";
      tables.replace(tables.find(context), context.size(), "group expert.exchange kind=" + kind);
      for (const std::string name : {"f", "y"}) {
        const std::string buffer = "buffer " + name + " ";
        tables.replace(tables.find(buffer + "f32"), buffer.size() + 3, buffer + type);
      }
      const Program program = parse_program(tables + kBegin + wgrad(0) + dgrad("x -> f") +
                                            exchange("f -> y") + dgrad("y -> d"));
      EXPECT_EQ(delay_context_wgrad(program, {}).report.changed, kind == "expert") << type;
    }
  }
}

TEST(DelayContextWgrad, NotBehindWhatOthersStartEarly) {
  const std::string gather = call("all_gather", "h[0:32] -> e");
  EXPECT_FALSE(
      delay(kBegin + wgrad(0) + dgrad("x -> h") + gather + dgrad("e -> f")).report.changed);
}

TEST(DelayContextWgrad, NotWhereSomethingRunsBesideTheCallAnyway) {
  EXPECT_FALSE(delay(kBegin + wgrad(0) + dgrad("x -> h") + exchange("h -> e") + dgrad("h -> f") +
                     dgrad("e -> d"))
                   .report.changed);
}

TEST(DelayContextWgrad, NotInForwardsNorAcrossJobs) {
  const std::string forward = "fill(-> x) s forward mb=0 vs=0 layer=0\n" +
                              dgrad("x -> h", "forward") + exchange("h -> e") +
                              dgrad("e -> f", "forward");
  EXPECT_FALSE(delay(kBegin + wgrad(0, 1) + forward).report.changed);
  EXPECT_FALSE(delay(kBegin + wgrad(0, 1) + dgrad("x -> h") + exchange("h -> e") + dgrad("e -> f"))
                   .report.changed)
      << "gradients are added up in the order of microbatches";
}

// A reduction that stands on the way goes along; what reads the gradient otherwise keeps it.
TEST(DelayContextWgrad, WhatDependsOnItGoesAlongOrKeepsIt) {
  const std::string reduce = "all_reduce(-> rw g0) {group=1} s comm layer=0\n";
  const std::string rest = dgrad("x -> h") + exchange("h -> e");
  EXPECT_EQ(tasks_of(delay(kBegin + wgrad(0) + reduce + rest + dgrad("e -> f"))),
            kBegin + rest + wgrad(0) + reduce + dgrad("e -> f"));
  const PassResult stuck =
      delay(kBegin + wgrad(0) + "norm(g0 -> n) s optimizer\n" + rest + dgrad("e -> f"));
  EXPECT_EQ(stuck.report.summary,
            "moved 0 weight gradients behind 1 calls of context and expert ranks; 1 stay, because "
            "an earlier "
            "task needs them");
}

}  // namespace
}  // namespace braid
