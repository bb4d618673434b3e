// Memory of a step as a function of its microbatches: exact, without the gaps of a packing, which
// are a few percent and may differ.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "memory/heaviest_clique.h"
#include "memory/max_live.h"
#include "plan/run_plan.h"
#include "support/thinned.h"

namespace braid {
namespace {

struct PipelineCase {
  const char* schedule;
  int64_t ranks;
  int64_t stages;  ///< virtual, per rank
  bool has_overlap;
};

void PrintTo(const PipelineCase& it, std::ostream* out) {
  *out << it.schedule << " P" << it.ranks << " V" << it.stages << (it.has_overlap ? "" : " off");
}

constexpr int64_t kSequence = 64;
constexpr int64_t kTokensBytes = kSequence * 4;  // of one microbatch, a multiple of the alignment

RunPlan plan_of(const PipelineCase& it, int64_t microbatches) {
  const std::vector<std::string> overrides = {
      "model.width=64",
      "model.heads=4",
      "model.ffn=64",
      "train.microbatch=1",
      "eval.interval=0",
      "logging.run_folder=none",
      fmt::format("model.layers={}", it.ranks * it.stages),
      fmt::format("train.sequence={}", kSequence),
      fmt::format("train.global_batch={}", microbatches),
      fmt::format("parallel.ranks={}", it.ranks),
      fmt::format("parallel.pipeline={}", it.ranks),
      fmt::format("parallel.virtual_stages={}", it.stages),
      fmt::format("parallel.schedule={}", it.schedule),
      fmt::format("overlap.mode={}", it.has_overlap ? "auto" : "off")};
  const RunConfig config = parse_config("", "pipeline", overrides);
  validate(config);
  return plan_run(resolve_run(resolved(config), 101), {.verify = false});
}

/// What the step needs beside persistent buffers, in any plan that adds no dependency.
int64_t step_bytes(const Program& program) {
  const TaskOrder order(program);
  const LiveRanges ranges(program, order);
  std::vector<int64_t> sizes_bytes;
  for (const Buffer& buffer : program.buffers) {
    sizes_bytes.push_back(aligned_bytes(buffer));
  }
  const auto clique = find_heaviest_clique(ranges, sizes_bytes, 1'000'000'000);
  EXPECT_TRUE(clique.has_value());
  return live_together(program, clique.value(), sizes_bytes).bytes;
}

/// By rank.
struct Needs {
  std::vector<int64_t> step_bytes;
  std::vector<int64_t> persistent_bytes;  ///< without inputs and outputs
  std::vector<int64_t> io_bytes;          ///< inputs and outputs
};

Needs needs_of(const PipelineCase& it, int64_t microbatches) {
  Needs needs;
  for (const RankPlan& rank : plan_of(it, microbatches).ranks) {
    const int64_t io_bytes = rank.memory.persistent_by_role.at(BufferRole::kIo);
    needs.step_bytes.push_back(step_bytes(rank.programs[kTrainProgram]));
    needs.persistent_bytes.push_back(rank.memory.persistent_bytes - io_bytes);
    needs.io_bytes.push_back(io_bytes);
  }
  return needs;
}

std::vector<int64_t> growth(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  std::vector<int64_t> bytes;
  for (size_t rank = 0; rank < to.size(); ++rank) {
    bytes.push_back(to[rank] - from[rank]);
  }
  return bytes;
}

/// The tokens of every microbatch lie on the rank with the embedding, the targets on the one with
/// the loss. Nothing else of a microbatch persists.
void expect_only_tokens_persist(const PipelineCase& it, const Needs& few, const Needs& many,
                                int64_t added) {
  EXPECT_EQ(many.persistent_bytes, few.persistent_bytes);
  std::vector<int64_t> expected(static_cast<size_t>(it.ranks), 0);
  const std::string schedule = it.schedule;
  const bool is_folded = schedule == "zb-v" || schedule == "dualpipe-v";
  expected.front() += added * kTokensBytes;
  (is_folded ? expected.front() : expected.back()) += added * kTokensBytes;
  EXPECT_EQ(growth(few.io_bytes, many.io_bytes), expected);
}

/// From this number of microbatches on the pipeline is full.
int64_t microbatches_to_fill(const PipelineCase& it) {
  const std::string schedule = it.schedule;
  return schedule == "interleaved"  ? 3 * it.ranks
         : schedule == "zb-v"       ? 2 * it.ranks
         : schedule == "dualpipe-v" ? 2 * it.ranks + 1
                                    : it.ranks + 1;
}

class FullPipeline : public testing::TestWithParam<PipelineCase> {};

TEST_P(FullPipeline, NeedsTheSameMemoryForAnyMoreMicrobatches) {
  const PipelineCase& it = GetParam();
  const int64_t filled = microbatches_to_fill(it);
  const Needs few = needs_of(it, filled);
  for (const int64_t added : {it.ranks, 3 * it.ranks}) {
    SCOPED_TRACE(fmt::format("{} and {} microbatches", filled, filled + added));
    const Needs many = needs_of(it, filled + added);
    EXPECT_EQ(many.step_bytes, few.step_bytes);
    expect_only_tokens_persist(it, few, many, added);
  }
}

std::vector<PipelineCase> full_pipelines() {
  std::vector<PipelineCase> cases;
  for (const bool has_overlap : {false, true}) {
    for (const int64_t ranks : {2, 4}) {
      cases.push_back({"1f1b", ranks, 1, has_overlap});
      cases.push_back({"interleaved", ranks, 2, has_overlap});
      cases.push_back({"zb-h1", ranks, 1, has_overlap});
      cases.push_back({"zb-v", ranks, 2, has_overlap});
      cases.push_back({"dualpipe-v", ranks, 2, has_overlap});
    }
    cases.push_back({"interleaved", 2, 3, has_overlap});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Schedules, FullPipeline, testing::ValuesIn(thinned(full_pipelines(), 3)));

class Gpipe : public testing::TestWithParam<PipelineCase> {};

// It keeps the activations of all microbatches.
TEST_P(Gpipe, NeedsTheSameMemoryForEachMicrobatch) {
  const PipelineCase& it = GetParam();
  const Needs first = needs_of(it, 8 * it.ranks);
  const Needs second = needs_of(it, 8 * it.ranks + 1);
  const Needs third = needs_of(it, 8 * it.ranks + 4);
  const std::vector<int64_t> per_microbatch = growth(first.step_bytes, second.step_bytes);
  for (size_t rank = 0; rank < per_microbatch.size(); ++rank) {
    EXPECT_GT(per_microbatch[rank], 10 * kTokensBytes);
    EXPECT_EQ(third.step_bytes[rank] - second.step_bytes[rank], 3 * per_microbatch[rank]);
  }
  expect_only_tokens_persist(it, first, third, 4);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Gpipe,
                         testing::Values(PipelineCase{"gpipe", 2, 1, false},
                                         PipelineCase{"gpipe", 3, 1, false},
                                         PipelineCase{"gpipe", 2, 1, true},
                                         PipelineCase{"gpipe", 3, 1, true}));

}  // namespace
}  // namespace braid
