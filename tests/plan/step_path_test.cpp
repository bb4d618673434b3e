#include "plan/step_path.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "config/validate.h"
#include "plan/describe_simulation.h"
#include "plan/run_spec.h"
#include "sim/analytic_model.h"
#include "sim/linked_model.h"
#include "support/emulated_layouts.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

/// Every nanosecond of the step has one cause and one stage, and the strip ends with the step.
void expect_whole(const StepPath& path, const SimulatedRun& run) {
  EXPECT_EQ(path.step_ns, run.step_ns());
  int64_t sum_ns = 0;
  for (const PathPart& part : path.parts) {
    EXPECT_GT(part.ns, 0) << part.cause;
    EXPECT_EQ(std::accumulate(part.stage_ns.begin(), part.stage_ns.end(), int64_t{0}), part.ns)
        << part.cause;
    sum_ns += part.ns;
  }
  EXPECT_EQ(sum_ns, run.step_ns());
  ASSERT_FALSE(path.stretches.empty());
  EXPECT_LE(path.stretches.size(), static_cast<size_t>(kMaxPathStretches));
  EXPECT_EQ(path.stretches.back().end_ns, run.step_ns());
  int64_t end_ns = 0;
  for (const PathStretch& stretch : path.stretches) {
    EXPECT_GT(stretch.end_ns, end_ns);
    end_ns = stretch.end_ns;
  }
}

RunSpec run_of(RunConfig config) {
  validate(config);
  return resolve_run(resolved(config), 0);
}

TEST(StepPath, FillsTheStepOfEveryLayout) {
  const auto model = make_analytic_model(parse_cluster("h100x8:4"));
  for (const char* const name :
       {"tensor_pipeline", "tensor_copies", "parameters", "experts", "ring", "a2a"}) {
    for (const char* const overlap : {"off", "auto"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, overlap));
      RunConfig config = small_planned_run();
      config.model.heads = 8;
      config.overlap.mode = overlap;
      const SimulatedRun run(resolve_run(emulated_layout(config, name, 8), 0), *model);
      expect_whole(step_path(run), run);
    }
  }
}

TEST(StepPath, FillsTheStepOfEverySchedule) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  for (const auto& [schedule, stages] : {std::pair{"gpipe", 1},
                                         {"1f1b", 1},
                                         {"interleaved", 2},
                                         {"zb-h1", 1},
                                         {"zb-v", 2},
                                         {"dualpipe-v", 2}}) {
    SCOPED_TRACE(schedule);
    RunConfig config = small_planned_run();
    config.model.layers = 8;
    config.parallel.ranks = 8;
    config.parallel.pipeline = 4;
    config.parallel.schedule = schedule;
    config.parallel.virtual_stages = stages;
    const SimulatedRun run(run_of(config), *model);
    const StepPath path = step_path(run);
    expect_whole(path, run);
    EXPECT_EQ(path.parts.front().stage_ns.size(), 4u);
    EXPECT_GT(path.num_moves, 0);
  }
}

TEST(StepPath, OfEmulatedLinksFillsTheStep) {
  RunConfig config = small_planned_run();
  config.parallel.ranks = 4;
  config.parallel.tensor = 2;
  config.parallel.shard = "optimizer";
  LinkOptions links;
  for (LinkSpec& link : links.by_kind) {
    link = {.latency_ns = 2000, .bytes_per_s = 1e8};
  }
  const auto model = make_linked_model(make_analytic_model(parse_cluster("cpux4")), links);
  const SimulatedRun run(run_of(config), *model);
  const StepPath path = step_path(run);
  expect_whole(path, run);
  EXPECT_THAT(path.parts, Contains(Field(&PathPart::cause, "latency of communication")));
}

TEST(StepPath, OfOneRankIsItsComputeAndTheHost) {
  const auto model = make_analytic_model(parse_cluster("h100"));
  const SimulatedRun run(run_of(small_planned_run()), *model);
  const StepPath path = step_path_with_gains(run);
  expect_whole(path, run);
  EXPECT_EQ(path.num_moves, 0);
  for (const PathPart& part : path.parts) {
    EXPECT_THAT(part.cause, Not(HasSubstr("communication")));
    EXPECT_LE(part.gain_ns, run.step_ns());
    if (part.cause == "matrix products") {
      PriceChanges changes;
      changes.products = 0;
      EXPECT_EQ(part.gain_ns, run.step_ns() - run.step_ns_with(changes));
    }
  }
  EXPECT_THAT(path.parts, Contains(Field(&PathPart::cause, "optimizer")));
}

// Tensor ranks between nodes: their communication bounds the step, and the step without it is
// shorter by more than a third.
TEST(StepPath, NamesTheCommunicationThatBoundsTheStep) {
  RunConfig config = small_planned_run();
  config.model.width = 1024;
  config.model.heads = 8;
  config.parallel.ranks = 8;
  config.parallel.tensor = 8;
  config.overlap.mode = "off";
  const auto model = make_analytic_model(parse_cluster("h100x8:2"));
  const SimulatedRun run(run_of(config), *model);
  const StepPath path = step_path_with_gains(run);
  expect_whole(path, run);
  EXPECT_THAT(path.parts, Contains(Field(&PathPart::cause, "tensor communication")));
  EXPECT_EQ(path.parts.front().cause, "latency of communication");
  for (const PathPart& part : path.parts) {
    if (part.cause == "tensor communication") {
      EXPECT_GT(part.gain_ns, run.step_ns() / 3);
    }
  }
}

TEST(StepPath, IsInTextAndJson) {
  RunConfig config = small_planned_run();
  config.parallel.ranks = 8;
  config.parallel.pipeline = 2;
  const auto model = make_analytic_model(parse_cluster("h100x8"));
  const SimulatedRun run(run_of(config), *model);
  const SimulationDetails details{.path = step_path(run)};
  const std::string text = describe_simulation(run, details);
  EXPECT_THAT(text, HasSubstr("\npath      "));
  EXPECT_THAT(text, HasSubstr("time    part  most on stages\n"));
  EXPECT_THAT(text, HasSubstr("\nhost "));
  EXPECT_THAT(text, Not(HasSubstr("without it")));
  const auto json = nlohmann::json::parse(simulation_json(run, details))["critical_path"];
  EXPECT_EQ(json["step_ns"], run.step_ns());
  EXPECT_EQ(json["parts"].size(), details.path->parts.size());
  EXPECT_EQ(json["parts"][0]["cause"], details.path->parts[0].cause);
  EXPECT_EQ(json["parts"][0]["stage_ns"].size(), 2u);
  EXPECT_FALSE(json["parts"][0].contains("gain_ns"));
  EXPECT_THAT(describe_path(step_path_with_gains(run)), HasSubstr(" without it"));
}

}  // namespace
}  // namespace braid
