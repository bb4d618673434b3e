#include "passes/tensor/split_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ir/text.h"
#include "ir/verify.h"
#include "ops/op.h"
#include "passes/pipeline.h"
#include "passes/runner.h"
#include "passes/streams/insert_events.h"
#include "sim/fixed_costs.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Products take 10 ns per row or feature of what they write other
/// tasks a nanosecond per element of their first operand, and all `extra_ns` more.
class ProductCosts final : public CostModel {
 public:
  int64_t extra_ns = 0;

  explicit ProductCosts(Contention contention = {}) : fixed_(small_cluster(2, 2), contention) {
    fixed_.latency_ns = 900;
  }
  Cost task_cost(const OpSpec& spec) const override {
    check_spec(spec);
    const bool is_product = spec.op.find("linear") != std::string::npos;
    const Shape& written = spec.operands.back().shape;
    return {.ns = extra_ns + (is_product ? 10 * written[0] : spec.operands[0].shape.num_elems())};
  }
  Cost comm_cost(const CommSpec& spec) const override { return fixed_.comm_cost(spec); }
  Cost host_copy_cost(HostCopy direction, int64_t bytes) const override {
    return fixed_.host_copy_cost(direction, bytes);
  }
  const Contention& contention() const override { return fixed_.contention(); }
  const Cluster& cluster() const override { return fixed_.cluster(); }
  int64_t launch_ns() const override { return 0; }
  int64_t step_overhead_ns() const override { return 0; }
  std::string description() const override { return "products"; }

 private:
  FixedCosts fixed_;
};

const std::string kTables =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "stream c kind=comm priority=1\n"
    "group tensor kind=tensor ranks=0,1\n"
    "buffer a f32 [100] activation step device\n"
    "buffer b f32 [100] activation step device\n"
    "buffer x f32 [8,4] io persistent device\n"
    "buffer y f32 [8,256] io persistent device\n"
    "buffer g f32 [256,4] main_grad persistent device\n"
    "buffer h f32 [64,16] io persistent device\n"
    "buffer i f32 [64,16] io persistent device\n"
    "buffer u f32 [128,16] io persistent device\n"
    "buffer v f32 [128,16] io persistent device\n"
    "buffer out f32 [100] io persistent device\n";

const std::string kMakeA = "fill(-> a) {value=1.0} s dgrad mb=0\n";
const std::string kSumA = "all_reduce(-> rw a) {group=0} c comm mb=0\n";  // 1000 ns
const std::string kUseA = "copy(a -> b) s dgrad mb=0\n";                  // 100 ns
const std::string kSumB = "all_reduce(-> rw b) {group=0} c comm mb=0\n";  // 1000 ns
const std::string kUseB = "copy(b -> out) s dgrad mb=0\n";
const std::string kWgrad =  // 2560 ns
    "linear_wgrad(x, y -> rw g) {has_bias=false, accumulate=true} s wgrad mb=0\n";
const std::string kGelu = "gelu(h -> i) s forward mb=1\n";  // 1024 ns

std::string wgrad_piece(int64_t begin, int64_t end) {
  return fmt::format(
      "linear_wgrad(x, y -> rw g[{}:{}] [{},4]) {{has_bias=false, accumulate=true, "
      "first_feature={}, end_feature={}}} s wgrad mb=0\n",
      4 * begin, 4 * end, end - begin, begin, end);
}

const SplitOpsOptions kOptions{.enabled = true, .min_gain_ns = 50, .min_rows = 16};

PassResult split(const std::string& tasks, const ProductCosts& costs = ProductCosts(),
                 const SplitOpsOptions& options = kOptions) {
  const Program program = parse_program(kTables + tasks);
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  PassResult result = split_ops(program, options, {.cost_model = &costs});
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_THAT(verify(insert_events(result.program).program, 1), IsEmpty());
  EXPECT_EQ(result.report.changed, !(result.program == program));
  for (const Task& task : result.program.tasks) {
    check_spec(result.program.spec(task));
  }
  return result;
}

std::string tasks_of(const PassResult& result) {
  const std::string text = print_program(result.program);
  const std::string last = "buffer out f32 [100] io persistent device\n";
  return text.substr(text.find(last) + last.size());
}

// The weight gradient ends 1560 ns after the first sum, and no compute runs beside the second.
TEST(SplitOps, TheRestRunsInTheNextWait) {
  const PassResult result = split(kMakeA + kSumA + kWgrad + kUseA + kSumB + kUseB);
  EXPECT_EQ(tasks_of(result),
            kMakeA + kSumA + wgrad_piece(0, 144) + kUseA + kSumB + wgrad_piece(144, 256) + kUseB);
  EXPECT_EQ(result.report.num_changes, 1);
  EXPECT_EQ(result.report.summary,
            "moved 1 tasks into waits for communication, split 1; waits are 1 us shorter");
}

TEST(SplitOps, WhatPiecesTakeMoreIsCountedIn) {
  ProductCosts costs;
  const std::string tasks = kMakeA + kSumA + kWgrad + kUseA + kSumB + kUseB;
  costs.extra_ns = 900;
  EXPECT_THAT(tasks_of(split(tasks, costs)), HasSubstr("first_feature"));
  costs.extra_ns = 980;  // the wait of 1000 ns becomes one of 980
  EXPECT_EQ(tasks_of(split(tasks, costs)), tasks);
}

// Scales of features are columns of a matrix: each piece reads a copy of its own, which takes 256
// ns.
TEST(SplitOps, APieceOfAnFp8ProductTakesItsScales) {
  const std::string buffers =
      "buffer x8 f8e4m3 [16,128] io persistent device\nbuffer xs f32 [1,16] io persistent device\n"
      "buffer dy8 f8e4m3 [256,128] io persistent device\n"
      "buffer dys f32 [1,256] io persistent device\n"
      "buffer g8 f32 [256,16] main_grad persistent device\n";
  const std::string wgrad =
      "scaled_linear_wgrad(x8, xs, dy8, dys -> rw g8) {block=128, accumulate=true} s wgrad mb=0\n";
  const std::string tasks = kMakeA + kSumA + wgrad + kUseA + kSumB + kUseB;
  const Program program = parse_program(kTables + buffers + tasks);
  const ProductCosts costs;
  const PassResult result = split_ops(program, kOptions, {.cost_model = &costs});
  EXPECT_THAT(verify(insert_events(result.program).program, 1), IsEmpty());
  const auto piece = [](int64_t begin) {
    const std::string scales = fmt::format("dys.from{}.for.g8.from{}", begin, 16 * begin);
    return fmt::format(
        "take_columns(dys -> {0}) {{runs=1, width=256, begin={1}, size=128}} s wgrad mb=0\n"
        "scaled_linear_wgrad(x8, xs, dy8[{2}:{3}] [128,128], {0} -> rw g8[{4}:{5}] [128,16]) "
        "{{block=128, accumulate=true}} s wgrad mb=0\n",
        scales, begin, 128 * begin, 128 * begin + 16384, 16 * begin, 16 * begin + 2048);
  };
  EXPECT_THAT(print_program(result.program),
              HasSubstr(kMakeA + kSumA + piece(0) + kUseA + kSumB + piece(128) + kUseB));
}

// A piece that would hide the sum in 1000 ns takes longer beside it: less of it moves.
TEST(SplitOps, ComputeIsSlowerBesideCommunication) {
  Contention contention;
  contention.gemm_and_sm_comm.compute = 0.5;
  const PassResult result =
      split(kMakeA + kSumA + kWgrad + kUseA + kSumB + kUseB, ProductCosts(contention));
  EXPECT_THAT(tasks_of(result), HasSubstr(kSumB + wgrad_piece(192, 256) + kUseB));
}

// Nothing waits where it stood.
TEST(SplitOps, ATaskMovesAsAWholeWhereItHidesNothing) {
  const PassResult result = split(kGelu + kMakeA + kSumA + kUseA + kUseB);
  EXPECT_EQ(tasks_of(result), kMakeA + kSumA + kGelu + kUseA + kUseB);
  EXPECT_THAT(result.report.summary, HasSubstr("split 0; "));
}

TEST(SplitOps, NothingMovesBehindWhatDependsOnIt) {
  const std::string reader = "copy(g[0:100] -> out) s dgrad mb=0\n";
  const std::string tasks = kMakeA + kSumA + kWgrad + kUseA + reader + kSumB + kUseB;
  EXPECT_EQ(tasks_of(split(tasks)), tasks);
  // Nor before what overwrites its operands.
  const std::string writer = "fill(-> x) {value=0.0} s dgrad mb=0\n";
  const std::string overwritten = kMakeA + kSumA + kWgrad + kUseA + writer + kSumB + kUseB;
  EXPECT_EQ(tasks_of(split(overwritten)), overwritten);
}

TEST(SplitOps, ACommunicationThatIsHiddenStaysSo) {
  // Behind the second sum stands as much as it takes.
  const std::string tasks = kMakeA + kSumA + kWgrad + kUseA + kSumB + kGelu + kUseB;
  EXPECT_EQ(tasks_of(split(tasks)), tasks);
}

TEST(SplitOps, LimitsAreKept) {
  const std::string tasks = kMakeA + kSumA + kWgrad + kUseA + kSumB + kUseB;
  SplitOpsOptions options = kOptions;
  options.min_gain_ns = 1001;
  EXPECT_EQ(tasks_of(split(tasks, ProductCosts(), options)), tasks);
  options = kOptions;
  options.max_distance = 2;
  EXPECT_EQ(tasks_of(split(tasks, ProductCosts(), options)), tasks);
  options = kOptions;
  options.max_pieces = 1;
  EXPECT_EQ(tasks_of(split(tasks, ProductCosts(), options)), tasks);
  options = kOptions;
  options.min_rows = 128;
  EXPECT_EQ(tasks_of(split(tasks, ProductCosts(), options)),
            kMakeA + kSumA + wgrad_piece(0, 128) + kUseA + kSumB + wgrad_piece(128, 256) + kUseB);
  options.min_rows = 129;
  EXPECT_EQ(tasks_of(split(tasks, ProductCosts(), options)), tasks);
}

TEST(SplitOps, CutsWhatIsNoProductToo) {
  const std::string gelu = "gelu(u -> v) s forward mb=1\n";  // 2048 ns
  EXPECT_EQ(tasks_of(split(kMakeA + kSumA + gelu + kUseA + kSumB + kUseB)),
            kMakeA + kSumA + "gelu(u[0:1024] [64,16] -> v[0:1024] [64,16]) s forward mb=1\n" +
                kUseA + kSumB +
                "gelu(u[1024:2048] [64,16] -> v[1024:2048] [64,16]) s forward mb=1\n" + kUseB);
}

TEST(SplitOps, CommunicationOnTheStreamOfComputeIsNoWait) {
  std::string tasks = kMakeA + kSumA + kWgrad + kUseA + kSumB + kUseB;
  for (size_t at = tasks.find(" c comm"); at != std::string::npos; at = tasks.find(" c comm")) {
    tasks.replace(at, 7, " s comm");
  }
  EXPECT_EQ(tasks_of(split(tasks)), tasks);
}

TEST(SplitOps, IsOffByDefaultAndNeedsCosts) {
  const std::string tasks = kMakeA + kSumA + kWgrad + kUseA + kSumB + kUseB;
  EXPECT_EQ(tasks_of(split(tasks, ProductCosts(), {})), tasks);
  PipelineOptions options;
  options.of<SplitOpsOptions>() = kOptions;
  const Program program = parse_program(kTables + tasks);
  const std::vector<Pass> passes = default_pipeline(options);
  const auto record_of = [&](const PassContext& context) {
    const PipelineResult result = run_passes(program, passes, context);
    return *std::ranges::find(result.records, "split_ops", &PassRecord::name);
  };
  EXPECT_EQ(record_of({.may_change_rounding = true}).report.summary, "needs costs of tasks");
  const ProductCosts costs;
  EXPECT_TRUE(record_of({.cost_model = &costs}).skipped);
  EXPECT_TRUE(record_of({.may_change_rounding = true, .cost_model = &costs}).report.changed);
}

// Attention steps of context ranks differ, and with them what would be cut.
TEST(SplitOps, LeavesContextRanksAlone) {
  std::string tables = kTables;
  const std::string group = "group tensor kind=tensor ranks=0,1\n";
  tables.replace(tables.find(group), group.size(), group + "group ring kind=context ranks=0,1\n");
  const ProductCosts costs;
  const Program program = parse_program(tables + kMakeA + kSumA + kWgrad + kUseA + kSumB + kUseB);
  const PassResult result = split_ops(program, kOptions, {.cost_model = &costs});
  EXPECT_FALSE(result.report.changed);
  EXPECT_EQ(result.report.summary, "context ranks differ in what they compute");
}

// Groups that lie elsewhere: data ranks of both reduce the same gradients in one order.
TEST(SplitOps, RanksWithEqualProgramsAreCutAlike) {
  const std::string tasks = kMakeA + kSumA + kWgrad + kUseA + kSumB + kUseB;
  std::string elsewhere = kTables + tasks;
  elsewhere.replace(elsewhere.find("rank=0 ranks=2"), 14, "rank=2 ranks=4");
  elsewhere.replace(elsewhere.find("ranks=0,1"), 9, "ranks=1,2");  // would straddle two nodes
  const ProductCosts costs;
  const PassResult result = split_ops(parse_program(elsewhere), kOptions, {.cost_model = &costs});
  EXPECT_EQ(tasks_of(result), tasks_of(split(tasks)));
}

}  // namespace
}  // namespace braid
