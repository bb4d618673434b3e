#include "passes/tensor/halve_forward.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "ir/verify.h"
#include "parallel/step_program.h"
#include "passes/remove_identities.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;

constexpr int64_t kSequence = 64;
constexpr int64_t kMicrobatch = 2;
constexpr int64_t kRows = kMicrobatch * kSequence;
constexpr int64_t kTensor = 2;

struct Case {
  bool sequence_parallel = true;
  int64_t num_microbatches = 1;
  int64_t ffn = 12;
  int64_t sequence = kSequence;
  DType dtype = DType::kF32;
  int64_t width = 8;
  int64_t heads = 2;
};

Program program_of(const Case& it) {
  const Mesh mesh({.tensor = kTensor});
  const ModelSpec model = {.layers = 2,
                           .width = it.width,
                           .heads = it.heads,
                           .kv_heads = it.heads,
                           .head_size = it.width / it.heads,
                           .ffn = it.ffn,
                           .vocabulary = 50,
                           .max_positions = it.sequence};
  const ParallelOptions parallel{.sequence_parallel = it.sequence_parallel};
  const ParameterLayout layout = make_rank_layout(model, mesh, 0, parallel);
  return remove_identities(build_train_program(model, layout, mesh, 0,
                                               {.microbatch = kMicrobatch,
                                                .sequence = it.sequence,
                                                .num_microbatches = it.num_microbatches,
                                                .dtype = it.dtype,
                                                .parallel = parallel}))
      .program;
}

PassResult halve(const Program& program, int64_t rows = kRows, const CostModel* model = nullptr) {
  PassResult result = halve_forward(program, {.rows = rows}, {.cost_model = model});
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  return result;
}

/// The first elements of a task's operands of step buffers tell its half.
int half_of(const Program& program, const Task& task) {
  const BufferRange& range = program.operands_of(task).back();
  return 2 * range.begin >= program.buffers[range.buffer.index()].num_elems() ? 1 : 0;
}

/// Of the first layer's forward, from its attention on: what is computed and called, with the half.
std::vector<std::string> outline(const Program& program) {
  std::vector<std::string> words;
  for (const Task& task : program.tasks) {
    const std::string& site =
        task.label.site.valid() ? program.sites[task.label.site.index()] : std::string();
    const std::string& op = program.spec(task).op;
    const bool is_shown =
        op == "attention" || op == "swiglu" || op == "reduce_scatter" || op == "all_gather";
    if (is_shown && site.starts_with("layers.0.") && task.label.phase != Phase::kDgrad) {
      words.push_back(fmt::format("{}{}", op, half_of(program, task)));
    }
    if (task.label.phase == Phase::kDgrad) {
      break;
    }
  }
  return words;
}

int64_t count(const Program& program, std::string_view op, Phase phase) {
  return std::ranges::count_if(program.tasks, [&](const Task& task) {
    return program.spec(task).op == op && task.label.phase == phase;
  });
}

TEST(HalveForward, WeavesHalvesSoThatEachHidesTheOthersCalls) {
  const PassResult result = halve(program_of({}));
  EXPECT_EQ(result.report.summary, "interleaved the halves of 1 of 1 forwards");
  EXPECT_EQ(result.report.num_changes, 1);
  EXPECT_THAT(outline(result.program),
              ElementsAre("all_gather0", "all_gather1", "attention0", "reduce_scatter0",
                          "all_gather0", "attention1", "reduce_scatter1", "all_gather1", "swiglu0",
                          "reduce_scatter0", "swiglu1", "reduce_scatter1"));
}

TEST(HalveForward, KeepsTheBackwardWholeButForCallsAndTheProductsBesideThem) {
  const Program before = program_of({});
  const Program after = halve(before).program;
  for (const char* const op : {"attention_backward", "swiglu_backward", "rmsnorm_backward"}) {
    EXPECT_EQ(count(after, op, Phase::kDgrad), count(before, op, Phase::kDgrad)) << op;
  }
  EXPECT_EQ(count(after, "linear_wgrad", Phase::kWgrad),
            count(before, "linear_wgrad", Phase::kWgrad));
  EXPECT_EQ(count(after, "linear_dgrad", Phase::kDgrad),
            2 * count(before, "linear_dgrad", Phase::kDgrad));
  for (const char* const op : {"all_gather", "reduce_scatter"}) {
    // What ranks tell each other of the loss is no row of a microbatch.
    const int64_t others = op == std::string("all_gather") ? 1 : 0;
    EXPECT_EQ(count(after, op, Phase::kComm) - others,
              2 * (count(before, op, Phase::kComm) - others))
        << op;
  }
}

// A rank owns a part of each half: every gather and scatter must say so, or rows change places.
TEST(HalveForward, RanksShareEachHalf) {
  const Program program = halve(program_of({.num_microbatches = 2})).program;
  int64_t num_calls = 0;
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    if ((spec.op == "all_gather" || spec.op == "reduce_scatter") &&
        spec.operands[0].shape[1] == 8) {
      const auto ranges = program.operands_of(task);
      EXPECT_EQ(ranges[0].end - ranges[0].begin, spec.operands[0].shape.num_elems());
      const int64_t whole = std::max(spec.operands[0].shape[0], spec.operands[1].shape[0]);
      EXPECT_EQ(whole, kRows / 2) << spec.op;
      ++num_calls;
    }
  }
  EXPECT_THAT(num_calls, Ge(2 * 2 * 2 * 8));
}

TEST(HalveForward, CutsAllReducesOfForwardsOnly) {
  const Program before = program_of({.sequence_parallel = false});
  const PassResult result = halve(before);
  EXPECT_EQ(result.report.num_changes, 1);
  int64_t halves = 0;
  int64_t wholes = 0;
  for (const Task& task : result.program.tasks) {
    const OpSpec& spec = result.program.spec(task);
    if (spec.op == "all_reduce" && task.label.microbatch >= 0) {
      (spec.operands[0].shape[0] == kRows ? wholes : halves) += 1;
    }
  }
  EXPECT_EQ(halves, 2 * (1 + 2 * 2));  // embedding; both sums of two layers
  EXPECT_EQ(wholes, 1 + 2 * 2);
}

TEST(HalveForward, EveryForwardOfAStep) {
  const PassResult result = halve(program_of({.num_microbatches = 3}));
  EXPECT_EQ(result.report.summary, "interleaved the halves of 3 of 3 forwards");
}

/// Tensor ranks of an H200 with 16,384 rows of width 4,096.
Program large_program(const CostModel& model) {
  const Program whole = program_of(
      {.ffn = 1792 * kTensor, .sequence = 8192, .dtype = DType::kBF16, .width = 4096, .heads = 32});
  return halve(whole, kMicrobatch * 8192, &model).program;
}

/// By site: rows of the pieces of this op, in the order of rows.
std::map<std::string, std::vector<int64_t>> rows_of(const Program& program, std::string_view op) {
  std::map<std::string, std::map<int64_t, int64_t>> by_begin;
  for (const Task& task : program.tasks) {
    if (program.spec(task).op == op) {
      by_begin[program.sites[task.label.site.index()]][program.operands_of(task)[0].begin] =
          program.spec(task).operands[0].shape[0];
    }
  }
  std::map<std::string, std::vector<int64_t>> rows;
  for (const auto& [site, pieces] : by_begin) {
    for (const auto& [begin, count] : pieces) {
      rows[site].push_back(count);
    }
  }
  return rows;
}

// fc2's input gradient of 16,384 rows and 1,792 features takes 7 waves of tiles on an H200, halves
// of it 4 each; that of the attention's output takes 8, and its halves 4 each.
TEST(HalveForward, KeepsInputGradientsWholeThatTakeLongerInHalves) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  auto rows = rows_of(large_program(*model), "linear_dgrad");
  EXPECT_THAT(rows["layers.1.mlp.fc2"], ElementsAre(16384));
  EXPECT_THAT(rows["layers.1.attention.proj"], ElementsAre(8192, 8192));
}

// Half of fc1 takes 7 waves of tiles, and a call not as long as 4 of them.
TEST(HalveForward, LetsTheOtherHalfInWhereCallsEnd) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  auto rows = rows_of(large_program(*model), "linear");
  const std::vector<int64_t>& fc1 = rows["layers.1.mlp.fc1"];
  ASSERT_EQ(fc1.size(), 4);
  EXPECT_EQ(fc1[0] + fc1[1], 8192);
  EXPECT_GT(fc1[0], fc1[1]);
  EXPECT_EQ(fc1[2], fc1[0]);
  EXPECT_EQ(fc1[3], fc1[1]);
}

TEST(HalveForward, LeavesOtherProgramsAlone) {
  const Program program = program_of({});
  const PassResult result = halve(program, 0);
  EXPECT_FALSE(result.report.changed);
  EXPECT_EQ(result.program, program);
}

TEST(HalveForward, LeavesARunWholeThatSaysSo) {
  const Program program = program_of({});
  const PassResult result =
      halve_forward(program, {.rows = kRows, .whole_because = "another stage has experts"}, {});
  EXPECT_EQ(result.report.summary, "left forwards whole, since another stage has experts");
  EXPECT_EQ(result.program, program);
}

}  // namespace
}  // namespace braid
