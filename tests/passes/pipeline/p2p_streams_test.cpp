#include "passes/pipeline/p2p_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/text.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "passes/pipeline/delay_wgrad.h"
#include "passes/streams/insert_events.h"
#include "support/symbolic.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

// A middle stage: streams and groups as stage jobs make them.
const std::string kTables =
    "program step rank=1 ranks=3 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream f kind=comm priority=1\n"
    "stream b kind=comm priority=1\n"
    "group pipeline.forward kind=pipeline ranks=0,1,2\n"
    "group pipeline.backward kind=pipeline ranks=0,1,2\n"
    "buffer w f32 [64] param persistent device\n";

std::string buffers(int num_microbatches) {
  std::string text;
  for (int m = 0; m < num_microbatches; ++m) {
    for (const char* const name : {"x", "y", "dy", "dx"}) {
      text += "buffer " + (name + std::to_string(m)) + " f32 [64] activation step device\n";
    }
  }
  return text;
}

std::string forward(int microbatch) {
  const std::string m = std::to_string(microbatch);
  const std::string mb = " mb=" + m + " vs=0\n";
  return "recv(-> x" + m + ") {group=0, peer=0, channel=1} s comm" + mb + "linear(x" + m +
         ", w -> y" + m + ") s forward" + mb + "send(y" + m +
         ") {group=0, peer=2, channel=2} f comm" + mb;
}
std::string backward(int microbatch) {
  const std::string m = std::to_string(microbatch);
  const std::string mb = " mb=" + m + " vs=0\n";
  return "recv(-> dy" + m + ") {group=1, peer=2, channel=1} s comm" + mb + "linear_dgrad(x" + m +
         ", dy" + m + " -> dx" + m + ") s dgrad" + mb + "send(dx" + m +
         ") {group=1, peer=0, channel=0} b comm" + mb;
}
/// 1f1b with one forward ahead.
std::string step() {
  return buffers(3) + forward(0) + forward(1) + backward(0) + forward(2) + backward(1) +
         backward(2);
}

/// "recv F0 s": op, job and stream of all tasks that do something, "(F0)" for a hand-over.
Names names_of(const Program& program) {
  Names names;
  for (const Task& task : program.tasks) {
    const std::string buffer =
        program.buffers[program.operands_of(task).back().buffer.index()].name;
    const std::string job = (buffer[0] == 'd' ? "B" : "F") + std::to_string(task.label.microbatch);
    const std::string& op = program.spec(task).op;
    names.push_back(op == "undefine"
                        ? "(" + job + ")"
                        : op + " " + job + " " + program.streams[task.stream.index()].name);
  }
  return names;
}

PassResult take(const std::string& tasks, const P2pStreamsOptions& options) {
  const Program program = parse_program(kTables + tasks);
  PassResult result = p2p_streams(program, options);
  EXPECT_EQ(run_in_order(result.program), run_in_order(program));
  EXPECT_EQ(result.report.changed, !(result.program == program));
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_THAT(verify(insert_events(result.program).program, 1), IsEmpty());
  const PassResult again = p2p_streams(result.program, options);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

const std::string kF = " pipeline.forward.recv";
const std::string kB = " pipeline.backward.recv";

TEST(P2pStreams, AwaitsEachMessageFromTheJobBeforeInItsDirectionOnItsOwnStream) {
  const PassResult result = take(step(), {});
  EXPECT_EQ(names_of(result.program), (Names{"(F0)",
                                             "(F1)",
                                             "recv F0" + kF,
                                             "recv F1" + kF,
                                             "linear F0 s",
                                             "send F0 f",  //
                                             "(F2)",
                                             "recv F2" + kF,
                                             "linear F1 s",
                                             "send F1 f",  //
                                             "(B0)",
                                             "(B1)",
                                             "recv B0" + kB,
                                             "recv B1" + kB,
                                             "linear_dgrad B0 s",
                                             "send B0 b",
                                             "linear F2 s",
                                             "send F2 f",  //
                                             "(B2)",
                                             "recv B2" + kB,
                                             "linear_dgrad B1 s",
                                             "send B1 b",  //
                                             "linear_dgrad B2 s",
                                             "send B2 b"}));
  EXPECT_EQ(result.report.num_changes, 6);
  EXPECT_EQ(result.report.summary, "moved 6 messages off the compute stream");
}

TEST(P2pStreams, WithoutWarmupAndFlushOnlyBetweenThem) {
  // B0 is the first backward, F2 the last forward, with B1 after it.
  const PassResult result = take(step(), {.warmup_flush = false});
  EXPECT_EQ(names_of(result.program), (Names{"recv F0 s",
                                             "linear F0 s",
                                             "send F0 f",  //
                                             "recv F1 s",
                                             "(F2)",
                                             "recv F2" + kF,
                                             "linear F1 s",
                                             "send F1 f",  //
                                             "(B0)",
                                             "(B1)",
                                             "recv B0" + kB,
                                             "recv B1" + kB,
                                             "linear_dgrad B0 s",
                                             "send B0 b",
                                             "linear F2 s",
                                             "send F2 f",  //
                                             "linear_dgrad B1 s",
                                             "send B1 b",  //
                                             "recv B2 s",
                                             "linear_dgrad B2 s",
                                             "send B2 b"}));
  EXPECT_EQ(result.report.num_changes, 3);
}

TEST(P2pStreams, WithoutLookAheadOnlyStreamsChange) {
  const PassResult result = take(step(), {.jobs_ahead = 0});
  const Names names = names_of(result.program);
  EXPECT_EQ(Names(names.begin(), names.begin() + 8),
            (Names{"(F0)", "recv F0" + kF, "linear F0 s", "send F0 f", "(F1)", "recv F1" + kF,
                   "linear F1 s", "send F1 f"}));
}

TEST(P2pStreams, LooksFurtherAheadIfAsked) {
  const Names names = names_of(take(step(), {.jobs_ahead = 2}).program);
  EXPECT_EQ(Names(names.begin(), names.begin() + 8),
            (Names{"(F0)", "(F1)", "(F2)", "recv F0" + kF, "recv F1" + kF, "recv F2" + kF,
                   "linear F0 s", "send F0 f"}));
}

TEST(P2pStreams, EachJobAheadCostsAMessageOfMemory) {
  std::string tasks;  // without sends, which keep what they send
  for (const std::string& line : split_text(step(), '\n')) {
    tasks += line.empty() || line.starts_with("send") ? "" : line + "\n";
  }
  const auto step_bytes = [&](int64_t jobs_ahead) {
    const Program program =
        insert_events(
            p2p_streams(parse_program(kTables + tasks), {.jobs_ahead = jobs_ahead}).program)
            .program;
    const std::array programs = {&program};
    return plan_memory(programs).step_bytes;
  };
  EXPECT_LE(step_bytes(0), step_bytes(1));
  EXPECT_LT(step_bytes(1), step_bytes(5));
}

TEST(P2pStreams, BackwardMessagesMayLeaveOnTheComputeStream) {
  const PassResult result = take(step(), {.backward_on_comm_stream = false});
  const Names names = names_of(result.program);
  EXPECT_THAT(names, ::testing::Contains("send B0 s"));
  EXPECT_THAT(names, ::testing::Contains("send F0 f"));
  EXPECT_THAT(result.report.summary, HasSubstr(", left 3 messages on the compute stream"));
  EXPECT_EQ(result.report.num_changes, 9);
}

TEST(P2pStreams, PeersOfOneDirectionHaveStreamsOfTheirOwn) {
  // In a V a rank is sent to by both neighbours.
  const std::string tasks = buffers(2) +
                            "recv(-> x0) {group=0, peer=0, channel=1} s comm mb=0 vs=0\n"
                            "linear(x0, w -> y0) s forward mb=0 vs=0\n"
                            "recv(-> x1) {group=0, peer=2, channel=4} s comm mb=0 vs=1\n"
                            "linear(x1, w -> y1) s forward mb=0 vs=1\n";
  const std::string text = print_program(take(tasks, {}).program);
  EXPECT_THAT(text, HasSubstr("stream pipeline.forward.recv kind=comm priority=1\n"));
  EXPECT_THAT(text, HasSubstr("stream pipeline.forward.recv.2 kind=comm priority=1\n"));
}

TEST(P2pStreams, OffChangesNothing) {
  const Program program = parse_program(kTables + step());
  EXPECT_EQ(p2p_streams(program, {.enabled = false}).program, program);
}

// Forward of microbatch 1 woven into the backward of microbatch 0, two layers each, as Megatron-LM
// launches them: F is forward, B backward; A attention, D dispatch, E experts, C combine; w is a
// weight gradient. D and C are communication (m), all else compute (c).
class Woven {
 public:
  Woven() {
    text_ = kTables +
            "stream m kind=comm priority=1\n"
            "group expert kind=expert ranks=1\n"
            "buffer f f32 [64] activation persistent device\n"
            "buffer b f32 [64] activation persistent device\n"
            "buffer g f32 [64] main_grad persistent device\n"
            "buffer dy f32 [64] activation step device\n";
  }
  Woven& f(const std::string& name, int layer) {
    return add(name, "f", "rw f", is_comm(name) ? "comm" : "forward", 1, layer);
  }
  Woven& b(const std::string& name, int layer) {
    return add(name, "b", "rw b", is_comm(name) ? "comm" : "dgrad", 0, layer);
  }
  Woven& w(const std::string& name, int layer) {
    // A range of its own for each layer and part, so that nothing but the program orders them.
    const int begin = layer * 16 + (name == "E" ? 8 : 0);
    return add(name, "w", "rw g[" + std::to_string(begin) + ":" + std::to_string(begin + 8) + "]",
               "wgrad", 0, layer);
  }
  Woven& pre_forward() { return line("pre_F(-> rw f) s forward mb=1 vs=0\n"); }
  Woven& receive() {
    return line(
        "recv(-> dy) {group=1, peer=2, channel=1} s comm mb=0 vs=0\n"
        "post_B(dy -> rw b) s dgrad mb=0 vs=0\n");
  }
  Woven& send() {
    return line(
        "send(f) {group=0, peer=2, channel=2} f comm mb=1 vs=0\n"
        "send(b) {group=1, peer=0, channel=0} b comm mb=0 vs=0\n");
  }
  const std::string& text() const { return text_; }

 private:
  static bool is_comm(const std::string& name) { return name == "C" || name == "D"; }
  Woven& line(const std::string& line) {
    text_ += line;
    return *this;
  }
  Woven& add(const std::string& name, const std::string& direction, const std::string& operand,
             const std::string& phase, int microbatch, int layer) {
    const std::string part = name == "A" ? "attention" : name == "E" ? "mlp" : "exchange";
    return line(name + direction + std::to_string(layer) + "(-> " + operand + ") " +
                (is_comm(name) ? "m " : "s ") + phase + " mb=" + std::to_string(microbatch) +
                " vs=0 layer=" + std::to_string(layer) + " site=layers." + std::to_string(layer) +
                "." + part + "\n");
  }
  std::string text_;
};

/// Without delays: all weight gradients are before the messages.
std::string woven_step() {
  return Woven()
      .pre_forward()
      .receive()
      .b("C", 1)
      .f("A", 0)
      .b("E", 1)
      .f("D", 0)
      .w("E", 1)
      .b("D", 1)
      .f("E", 0)
      .f("C", 0)
      .b("A", 1)
      .w("A", 1)
      .b("C", 0)
      .f("A", 1)
      .b("E", 0)
      .f("D", 1)
      .w("E", 0)
      .b("D", 0)
      .f("E", 1)
      .f("C", 1)
      .b("A", 0)
      .w("A", 0)
      .send()
      .text();
}

/// Ops and the letter of their streams: c for compute, m for the rest.
std::string trace_of(const Program& program) {
  std::string trace;
  for (const Task& task : program.tasks) {
    const std::string& op = program.spec(task).op;
    if (op != "undefine") {
      const bool computes = program.streams[task.stream.index()].kind == StreamKind::kCompute;
      trace += (trace.empty() ? "" : " ") + op + (computes ? ":c" : ":m");
    }
  }
  return trace;
}

std::string woven(const DelayWgradOptions& delay, const P2pStreamsOptions& p2p) {
  const Program program = parse_program(woven_step());
  const Program result = p2p_streams(delay_wgrad(program, delay).program, p2p).program;
  EXPECT_EQ(run_in_order(result), run_in_order(program));
  EXPECT_THAT(verify(insert_events(result).program, 1), IsEmpty());
  return trace_of(result);
}

// Pull request 4268 with its options at their defaults, apart from the stream of the receive: the
// last layer's attention waits, and its message does not leave the compute stream.
TEST(P2pStreams, WovenAsMegatronWithOneDelayedLayer) {
  EXPECT_EQ(woven({.num_layers = 1, .whole_layers = false}, {.backward_on_comm_stream = false}),
            "pre_F:c recv:m post_B:c "
            "Cb1:m Af0:c Eb1:c Df0:m Ew1:c Db1:m Ef0:c Cf0:m Ab1:c Aw1:c "
            "Cb0:m Af1:c Eb0:c Df1:m Ew0:c Db0:m Ef1:c Cf1:m Ab0:c "
            "send:m send:c Aw0:c");
}

TEST(P2pStreams, WovenAsMegatronWithAllThreeOptionsAndTwoLayers) {
  EXPECT_EQ(woven({.num_layers = 2, .whole_layers = true}, {}),
            "pre_F:c recv:m post_B:c "
            "Cb1:m Af0:c Eb1:c Df0:m Db1:m Ef0:c Cf0:m Ab1:c "
            "Cb0:m Af1:c Eb0:c Df1:m Db0:m Ef1:c Cf1:m Ab0:c "
            "send:m send:m Ew1:c Aw1:c Ew0:c Aw0:c");
}

// The weight gradients at the end of the pair before hide the message.
TEST(P2pStreams, AMessageForAPairIsAwaitedFromTheBeginningOfThePairBefore) {
  const auto pair = [](int forward_of, int backward_of) {
    const std::string f = std::to_string(forward_of);
    const std::string b = std::to_string(backward_of);
    const std::string of_b = " mb=" + b + " vs=0\n";
    return "recv(-> x" + f + ") {group=0, peer=0, channel=1} s comm mb=" + f + " vs=0\n" +
           "recv(-> dy" + b + ") {group=1, peer=2, channel=1} s comm" + of_b + "linear(x" + f +
           ", w -> y" + f + ") s forward mb=" + f + " vs=0\n" + "linear_dgrad(x" + b + ", dy" + b +
           " -> dx" + b + ") s dgrad" + of_b + "send(dx" + b +
           ") {group=1, peer=0, channel=0} b comm" + of_b + "linear_wgrad(x" + b + ", dy" + b +
           " -> rw g) s wgrad" + of_b;
  };
  const std::string tables = "buffer g f32 [64] main_grad persistent device\n" + buffers(4);
  const Names names =
      names_of(take(tables + forward(0) + forward(1) + pair(2, 0) + pair(3, 1), {}).program);
  const auto place_of = [&](const std::string& task) {
    return std::ranges::find(names, task) - names.begin();
  };
  EXPECT_LT(place_of("recv B1" + kB), place_of("linear F2 s"));
  EXPECT_GT(place_of("recv B1" + kB), place_of("linear F1 s"));
  EXPECT_LT(place_of("recv F3" + kF), place_of("linear F2 s"));
}

}  // namespace
}  // namespace braid
