// A program adds its own pass to those of braid: its description alone decides modes and keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/fields.h"
#include "config/load.h"
#include "config/validate.h"
#include "passes/all_ranks.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline.h"
#include "plan/overlap_setup.h"
#include "plan/run_plan.h"
#include "plan/run_spec.h"
#include "plan/schedule_plan.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kProbe = "probe";

/// Raises the priority of every stream of communication.
PassResult raise_priorities(Program program) {
  int64_t num_raised = 0;
  for (Stream& stream : program.streams) {
    if (stream.kind == StreamKind::kComm && stream.priority < 5) {
      stream.priority = 5;
      ++num_raised;
    }
  }
  return {std::move(program), {num_raised > 0, num_raised, "raised priorities"}};
}

Pass probe(const PipelineOptions&) {
  return {.name = kProbe,
          .summary = "Raises priorities.",
          .run = run_of(raise_priorities),
          .only_overlaps = true};
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> list;
  for (const Pass& pass : default_pipeline()) {
    list.push_back(pass.name);
  }
  return list;
}

RunConfig config_with(const std::vector<std::string>& keys) {
  std::vector<std::string> overrides = {
      "model.layers=1",     "model.width=64",           "model.heads=2",    "model.vocabulary=256",
      "train.sequence=32",  "train.global_batch=4",     "parallel.ranks=2", "data.tokenizer=bytes",
      "train.microbatch=1", "logging.run_folder=unused"};
  overrides.insert(overrides.end(), keys.begin(), keys.end());
  RunConfig config = parse_config("", "added", overrides);
  validate(config);
  return resolved(config);
}

const PassRecord& record_of(const RunPlan& plan, std::string_view pass) {
  const std::vector<PassRecord>& records = plan.ranks.front().passes;
  const auto found = std::ranges::find(records, pass, &PassRecord::name);
  EXPECT_NE(found, records.end()) << pass;
  return *found;
}

TEST(AddedPass, IsWhereItBelongsForAsLongAsItIsKept) {
  EXPECT_THAT(names(), Not(Contains(kProbe)));
  {
    const AddedPass added = add_pass(probe, PassSide::kAfter, "assign_streams");
    const std::vector<std::string_view> list = names();
    EXPECT_EQ(*(std::ranges::find(list, "assign_streams") + 1), kProbe);
  }
  EXPECT_THAT(names(), Not(Contains(kProbe)));
  const AddedPass first = add_pass(probe, PassSide::kBefore, "limit_sms");
  EXPECT_EQ(names().front(), kProbe);
}

TEST(AddedPass, RunsInEveryPlanAndIsDisabledByName) {
  const AddedPass added = add_pass(probe, PassSide::kAfter, "assign_streams");
  const RunPlan plan = plan_run(resolve_run(config_with({}), 0));
  EXPECT_TRUE(record_of(plan, kProbe).report.changed);
  EXPECT_THAT(plan.ranks.front().programs[kTrainProgram].streams,
              Contains(::testing::Field(&Stream::priority, 5)));
  const RunPlan without =
      plan_run(resolve_run(config_with({"overlap.disable_passes=[\"probe\"]"}), 0));
  EXPECT_TRUE(record_of(without, kProbe).skipped);
}

TEST(AddedPass, ThatOnlyOverlapsIsOffInModeOff) {
  const AddedPass added = add_pass(probe, PassSide::kAfter, "assign_streams");
  EXPECT_THAT(overlap_setup({.mode = "off"}).disabled_passes, Contains(kProbe));
  EXPECT_TRUE(
      record_of(plan_run(resolve_run(config_with({"overlap.mode=off"}), 0)), kProbe).skipped);
  for (const char* const mode : {"auto", "manual"}) {
    EXPECT_THAT(overlap_setup({.mode = mode}).disabled_passes, Not(Contains(kProbe)));
  }
}

TEST(AddedPass, IsTriedOnAndOffByASearch) {
  const AddedPass added = add_pass(probe, PassSide::kAfter, "assign_streams");
  const std::vector<OverlapAxis> axes = axes_of(default_pipeline(), config_with({}), {});
  const auto axis = std::ranges::find(axes, kProbe, &OverlapAxis::name);
  ASSERT_NE(axis, axes.end());
  ASSERT_EQ(axis->choices.size(), 2U);
  OverlapConfig overlap;
  axis->choices[0](overlap);
  EXPECT_THAT(overlap.disable_passes, Contains(kProbe));
  axis->choices[1](overlap);
  EXPECT_THAT(overlap.disable_passes, Not(Contains(kProbe)));
}

TEST(AddedPass, OverAllRanksSeesThemAtOnce) {
  size_t num_ranks = 0;
  const auto look = [&](const PipelineOptions&) {
    return Pass{.name = kProbe,
                .summary = "Looks at all ranks.",
                .run_all =
                    [&](AllRanks& all, const PassContext&) {
                      num_ranks = all.ranks.program_of.size();
                      return PassReport{false, 0, "looked"};
                    },
                .only_overlaps = true};
  };
  const AddedPass added = add_pass(look, PassSide::kAfter, "choose_engines");
  EXPECT_TRUE(is_scheduled({}));
  EXPECT_FALSE(is_scheduled({.mode = "off"}));
  EXPECT_EQ(record_of(plan_run(resolve_run(config_with({}), 0)), kProbe).report.summary, "looked");
  EXPECT_EQ(num_ranks, 2U);
}

/// Leaves out the last task, and says so.
PassReport drop_last_task(AllRanks& all, const PassContext&) {
  for (PlannedStep& rank : all.planned) {
    rank.programs->front().tasks.pop_back();
  }
  return {true, 1, "dropped a task"};
}

TEST(AddedPass, OverAllRanksIsVerified) {
  const auto drop = [](const PipelineOptions&) {
    return Pass{.name = kProbe, .summary = "Drops a task.", .run_all = drop_last_task};
  };
  const AddedPass added = add_pass(drop, PassSide::kAfter, "choose_engines");
  EXPECT_THAT(message_of<InternalError>([&] { plan_run(resolve_run(config_with({}), 0)); }),
              HasSubstr("pass probe"));
}

TEST(AddedPass, IsRefusedWhereItCannotBe) {
  const auto refusal = [](PassSide side, const char* neighbour) {
    return message_of<ConfigError>(
        [&] { const AddedPass added = add_pass(probe, side, neighbour); });
  };
  EXPECT_THAT(refusal(PassSide::kAfter, "asign_streams"), HasSubstr("there is no such pass"));
  EXPECT_THAT(refusal(PassSide::kAfter, "list_schedule"), HasSubstr("passes over all ranks run"));
  const AddedPass added = add_pass(probe, PassSide::kAfter, "assign_streams");
  EXPECT_THAT(refusal(PassSide::kAfter, "assign_streams"), HasSubstr("there is one of that name"));
}

// Whoever adds a key says which pass reads it, and the other way round.
TEST(Passes, ReadTheKeysThatThereAre) {
  std::set<std::string> read = {"overlap.mode", "overlap.cost", "overlap.may_change_rounding",
                                "overlap.disable_passes"};
  for (const Pass& pass : default_pipeline()) {
    for (const std::string_view key : pass.keys) {
      const size_t dot = key.find('.');
      EXPECT_NE(find_field(key.substr(0, dot), key.substr(dot + 1)), nullptr) << key;
      read.emplace(key);
    }
  }
  for (const Field& field : config_fields()) {
    if (field.section == "overlap") {
      EXPECT_TRUE(read.contains(full_name(field))) << full_name(field);
    }
  }
}

TEST(Passes, OffLeavesOutEveryPassThatOnlyOverlaps) {
  const std::vector<std::string> disabled = overlap_setup({.mode = "off"}).disabled_passes;
  for (const Pass& pass : rank_passes(default_pipeline())) {
    EXPECT_EQ(std::ranges::find(disabled, pass.name) != disabled.end(), pass.only_overlaps)
        << pass.name;
  }
}

}  // namespace
}  // namespace braid
