#include "passes/pipeline/pair_forward_backward.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ir/verify.h"
#include "parallel/pipeline_layout.h"
#include "parallel/step_program.h"
#include "passes/pipeline/delay_wgrad.h"
#include "passes/pipeline/stage_messages.h"
#include "passes/remove_identities.h"
#include "passes/tensor/bulk_overlap.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two layers in the middle of a pipeline of three stages (or all six layers), two tensor ranks.
Program program_of(JobPairs pairs, int64_t microbatches, bool has_stages = true,
                   bool scatters = false) {
  const Mesh mesh({.tensor = 2, .pipeline = has_stages ? 3 : 1});
  const ModelSpec model = {.layers = has_stages ? 6 : 2,
                           .width = 8,
                           .heads = 2,
                           .kv_heads = 2,
                           .head_size = 4,
                           .ffn = 12,
                           .vocabulary = 50,
                           .max_positions = 8};
  ParallelOptions parallel{.sequence_parallel = scatters, .pairs = pairs};
  if (has_stages) {
    parallel.stages =
        make_pipeline_layout({.layers = 6, .schedule = {.num_ranks = 3}, .layout = "even"});
  }
  const int rank = mesh.rank_at({.pipeline = has_stages ? 1 : 0});
  const ParameterLayout layout = make_rank_layout(model, mesh, rank, parallel);
  Program program = build_train_program(
      model, layout, mesh, rank,
      {.microbatch = 1, .sequence = 8, .num_microbatches = microbatches, .parallel = parallel});
  return remove_identities(std::move(program)).program;
}

/// Tasks from the first one of forward f to the last one of backward b. A: attention and norms, E:
/// feed-forward, H: in no layer; f, b, w: forward, dgrad, wgrad; the layer; S: a send, *: another
/// call. Repeated words are one.
std::string outline(const Program& program, int32_t f, int32_t b, bool with_wgrads = false) {
  std::vector<std::string> words;
  size_t last_of_b = 0;
  bool has_begun = false;
  for (const Task& task : program.tasks) {
    const Label& label = task.label;
    const std::string& op = program.spec(task).op;
    has_begun |= label.phase == Phase::kForward && label.microbatch == f;
    if (!has_begun || op == "undefine" || op == "recv") {
      continue;
    }
    std::string word = op == "send" ? "S" : "*";
    if (label.phase != Phase::kComm) {
      word = label.layer < 0 ? "H" : is_feed_forward(program, task) ? "E" : "A";
      word += label.phase == Phase::kForward                ? 'f'
              : label.phase == Phase::kWgrad && with_wgrads ? 'w'
                                                            : 'b';
      word += label.layer < 0 ? "" : std::to_string(label.layer);
    }
    if (words.empty() || word != words.back() || label.phase == Phase::kComm) {
      words.push_back(word);
    }
    if (label.microbatch == b) {
      last_of_b = words.size();
    }
    if (label.phase == Phase::kForward && label.microbatch > f) {
      break;
    }
  }
  return fmt::format(
      "{}", fmt::join(words.begin(), words.begin() + static_cast<ptrdiff_t>(last_of_b), " "));
}

std::vector<JobPair> pairs_of(JobPairs pairs, int64_t microbatches, bool has_stages = true) {
  return paired_jobs(
      {.num_ranks = has_stages ? 3 : 1, .num_microbatches = microbatches, .pairs = pairs},
      has_stages ? 1 : 0);
}

PassResult pair(const Program& program, const std::vector<JobPair>& pairs,
                const CostModel* model = nullptr) {
  PassResult result = pair_forward_backward(program, {.pairs = pairs}, {.cost_model = model});
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_EQ(result.program.tasks.size(), program.tasks.size());
  return result;
}

// Megatron-LM's combined 1F1B: layer i of the forward with layer last - i of the backward, each
// segment beside the other's communication: Af0 Eb1 Ef0 Ab1 Af1 Eb0 Ef1 Ab0 there, and norms in
// front of their segments here. F's message leaves first.
TEST(PairForwardBackward, OrderOfCombined1f1b) {
  const Program program = program_of(JobPairs::kForwardBackward, 5);
  EXPECT_EQ(outline(program, 3, 0),
            "Af2 * Af2 Ef2 * Af3 * Af3 Ef3 * Af3 S Eb3 * Ab3 * Ab3 Eb2 * Ab2 * Ab2 S");
  const PassResult result = pair(program, pairs_of(JobPairs::kForwardBackward, 5));
  EXPECT_EQ(result.report.summary, "interleaved 2 of 2 pairs of jobs");
  EXPECT_EQ(outline(result.program, 3, 0),
            "Af2 * Eb3 * Af2 Ef2 * Ab3 * Af3 * Ab3 Eb2 * Af3 Ef3 * Ab2 * Af3 S Ab2 S");
  EXPECT_EQ(outline(result.program, 4, 1), outline(result.program, 3, 0));
}

// After the passes that run before this one: sums directly after their dgrads, weight gradients of
// the last layer after both messages.
TEST(PairForwardBackward, TakesOrdersWithinJobsAsTheyAre) {
  Program program = program_of(JobPairs::kForwardBackward, 5);
  program = delay_wgrad(std::move(program), {.num_layers = 1}).program;
  program = bulk_overlap(std::move(program), {}).program;
  const PassResult result = pair(program, pairs_of(JobPairs::kForwardBackward, 5));
  EXPECT_EQ(outline(result.program, 3, 0, true),
            "Af2 * Eb3 Ew3 Eb3 * Af2 Ef2 * Ew3 Ab3 Aw3 Ab3 * Af3 * Aw3 Ab3 Eb2 * Af3 Ef3 * Ab2 * "
            "Af3 S Ab2 S Ew2 Aw2");
}

TEST(PairForwardBackward, LeavesOtherProgramsAlone) {
  const Program program = program_of(JobPairs::kNone, 5);
  const PassResult none = pair(program, {});
  EXPECT_FALSE(none.report.changed);
  EXPECT_EQ(none.program, program);
}

// Without a pipeline: F0 (F1 B0) (F2 B1) B2.
TEST(PairForwardBackward, WithoutAPipeline) {
  const Program program = program_of(JobPairs::kForwardBackward, 3, false);
  const PassResult result = pair(program, pairs_of(JobPairs::kForwardBackward, 3, false));
  EXPECT_EQ(result.report.summary, "interleaved 2 of 2 pairs of jobs");
}

// Without a model, sums of a backward are hidden by its own weight gradients.
TEST(PairForwardBackward, Halves) {
  const Program program = program_of(JobPairs::kHalves, 4, false);
  const PassResult result = pair(program, pairs_of(JobPairs::kHalves, 4, false));
  EXPECT_EQ(result.report.summary, "interleaved 2 of 4 pairs of jobs");
}

// Prices decide, and equal programs are woven in one way on all tensor ranks.
TEST(PairForwardBackward, AsksTheCostModel) {
  const auto model = make_analytic_model(parse_cluster("h100x8"));
  const Program program = program_of(JobPairs::kForwardBackward, 5, true, true);
  const PassResult result = pair(program, pairs_of(JobPairs::kForwardBackward, 5), model.get());
  EXPECT_THAT(result.report.summary, HasSubstr("of 2 pairs of jobs"));
}

}  // namespace
}  // namespace braid
