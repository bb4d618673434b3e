#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "memory/live_ranges.h"
#include "plan/run_plan.h"

namespace braid {
namespace {

RankPlan plan_of(const std::vector<std::string>& layout) {
  std::vector<std::string> overrides = {
      "model.family=llama", "model.layers=6",       "model.width=64",  "model.heads=4",
      "model.kv_heads=2",   "model.head_size=16",   "model.ffn=64",    "train.microbatch=1",
      "train.sequence=16",  "train.global_batch=8", "eval.interval=0", "logging.run_folder=none",
      "parallel.ranks=2"};
  overrides.insert(overrides.end(), layout.begin(), layout.end());
  const RunConfig config = parse_config("", "memory", overrides);
  validate(config);
  return std::move(plan_run(resolve_run(resolved(config), 101)).ranks.front());
}

/// What of a step buffer's memory is taken at a time, by the order of streams and events: the most
/// buffers of a role that hold memory at once, among those with the words `part` in their name. All
/// of them must begin on one stream.
int64_t most_live(const Program& program, BufferRole role, const std::string& part) {
  const TaskOrder order(program);
  const LiveRanges ranges(program, order);
  std::vector<std::pair<uint32_t, int>> changes;
  std::optional<uint32_t> queue;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.role != role || !ranges.is_used(i) ||
        ("." + buffer.name).find("." + part) == std::string::npos) {
      continue;
    }
    queue = queue.value_or(ranges.queue(i));
    EXPECT_EQ(ranges.queue(i), *queue) << buffer.name;
    changes.emplace_back(ranges.start(i), 1);
    changes.emplace_back(ranges.end(i, ranges.queue(i)), -1);
  }
  std::ranges::sort(changes);
  int64_t live = 0;
  int64_t most = 0;
  for (const auto& [position, change] : changes) {
    live += change;
    most = std::max(most, live);
  }
  return most;
}

TEST(OverlapMemory, NoMoreUnitsAreGatheredThanThePrefetchDistanceAndOne) {
  for (const int units : {0, 1, 2}) {
    const RankPlan plan =
        plan_of({"parallel.shard=parameters", "overlap.mode=manual",
                 "overlap.overlap_grad_reduce=true", "overlap.overlap_param_gather=true",
                 "overlap.param_gather_prefetch_units=" + std::to_string(units)});
    EXPECT_EQ(most_live(plan.programs[kTrainProgram], BufferRole::kGathered, "gathered."),
              units + 1);
    EXPECT_LE(most_live(plan.programs[kEvalProgram], BufferRole::kGathered, "gathered."),
              units + 1);
  }
}

/// Places of tasks of an op that write a buffer whose name begins so, in program order.
std::vector<size_t> places_of(const Program& program, const std::string& op,
                              const std::string& name) {
  std::vector<size_t> places;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    const BufferRange written = program.operands_of(task).back();
    if (program.spec(task).op == op &&
        program.buffers[written.buffer.index()].name.starts_with(name)) {
      places.push_back(i);
    }
  }
  return places;
}

// ... under that of the others, and not by the jobs that read them, an evaluation among them.
TEST(OverlapMemory, WholeUnitsAreGatheredOnceBehindTheirUpdate) {
  const RankPlan plan =
      plan_of({"parallel.shard=parameters", "overlap.mode=manual",
               "overlap.overlap_grad_reduce=true", "overlap.overlap_param_gather=true",
               "overlap.param_gather_whole_units=2", "train.dtype=bfloat16"});
  const Program& train = plan.programs[kTrainProgram];
  const size_t last_update = places_of(train, "adamw", "params.").back();
  for (const char* const unit : {"embedding", "layers.0"}) {
    SCOPED_TRACE(unit);
    const std::string whole = std::string("params.") + unit;
    const std::string step_buffer = std::string("gathered.") + unit + ".";
    const std::vector<size_t> gathers = places_of(train, "all_gather", whole);
    ASSERT_EQ(gathers.size(), 1u);
    EXPECT_GT(gathers.front(), places_of(train, "adamw", whole).back());
    EXPECT_LT(gathers.front(), last_update);
    EXPECT_EQ(train.streams[train.tasks[gathers.front()].stream.index()].kind, StreamKind::kComm);
    EXPECT_TRUE(places_of(train, "all_gather", step_buffer).empty());
    EXPECT_TRUE(places_of(plan.programs[kEvalProgram], "all_gather", step_buffer).empty());
    EXPECT_TRUE(places_of(plan.programs[kEvalProgram], "all_gather", whole).empty());
  }
  EXPECT_FALSE(places_of(train, "all_gather", "gathered.layers.1.").empty());
}

// The table of a tied embedding stays from the beginning of a forward to the head, where the
// backward begins.
TEST(OverlapMemory, ATiedEmbeddingIsGatheredBesides) {
  const RankPlan plan = plan_of({"parallel.shard=parameters", "model.tied_embeddings=true"});
  EXPECT_EQ(most_live(plan.programs[kTrainProgram], BufferRole::kGathered, "gathered."), 3);
}

// At the end of a step that of each layer whose weight gradients wait for the embedding's, too.
TEST(OverlapMemory, TwoWholeGradientsExistAtATime) {
  for (const char* const shard : {"parallel.shard=gradients", "parallel.shard=parameters"}) {
    for (const int layers : {0, 1, 2}) {
      const RankPlan plan =
          plan_of({shard, "overlap.mode=manual", "overlap.overlap_grad_reduce=true",
                   "overlap.overlap_grad_reduce_delayed_wgrad_layers=" + std::to_string(layers)});
      EXPECT_EQ(most_live(plan.programs[kTrainProgram], BufferRole::kGrad, "grads."), 2 + layers)
          << shard;
    }
  }
  // Where they are rounded to be reduced, these are the whole ones on their way.
  const RankPlan narrow =
      plan_of({"parallel.shard=gradients", "parallel.grad_reduce_dtype=bfloat16"});
  EXPECT_LE(most_live(narrow.programs[kTrainProgram], BufferRole::kGrad, "rounded_grads."), 2);
  // Without the pass all units' wait for the end of the backward.
  const RankPlan off = plan_of({"parallel.shard=gradients", "overlap.mode=off"});
  EXPECT_GT(most_live(off.programs[kTrainProgram], BufferRole::kGrad, "grads."), 6);
}

// Two layers' attention; a ring takes as many keys and values with six ranks as with three.
TEST(OverlapMemory, ARingHoldsNoMoreKeysAndValuesWithMoreRanks) {
  const auto kv = [](const char* ranks, const char* sequence) {
    const RankPlan plan =
        plan_of({std::string("parallel.ranks=") + ranks, std::string("parallel.context=") + ranks,
                 std::string("train.sequence=") + sequence});
    return most_live(plan.programs[kTrainProgram], BufferRole::kActivation, "core.kv");
  };
  EXPECT_EQ(kv("3", "36"), kv("6", "72"));
  EXPECT_LE(kv("6", "72"), 3);  // the own ones, those in use, those on their way
}

}  // namespace
}  // namespace braid
