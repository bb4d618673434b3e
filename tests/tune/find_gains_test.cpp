#include "tune/find_gains.h"

#include <gmock/gmock.h>

#include "plan/run_spec.h"
#include "sim/analytic_model.h"
#include "tune/small_search.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

RunSpec run_of(RunConfig config) {
  config.logging.run_folder = "unused";
  validate(config);
  return resolve_run(resolved(config), 0);
}

RunConfig wasteful() {
  RunConfig config = small_search_run(4);
  config.model.layers = 2;
  config.parallel.tensor = 4;
  config.overlap.mode = "off";
  config.memory.recompute = "full";
  return config;
}

TEST(FindGains, OfAWastefulLayoutAreSimulatedSteps) {
  const auto model = make_analytic_model(parse_cluster("h100x4"));
  const SimulatedRun run(run_of(wasteful()), *model);
  const StepGains found = find_gains(run, {.num_layouts = 3, .num_overlaps = 4});
  ASSERT_FALSE(found.gains.empty());
  const StepGain& layout = found.gains.front();
  ASSERT_EQ(layout.kind, "layout");
  EXPECT_THAT(layout.what, HasSubstr(" instead of tp4 mb1 recompute=full"));
  bool is_simulated = false;
  for (const Layout& other : neighbours(layout_of(run.spec().config))) {
    if (layout.what.starts_with(layout_name(other) + " instead")) {
      const RunConfig config = with_layout(run.spec().config, other);
      is_simulated = true;
      EXPECT_EQ(SimulatedRun(run_of(config), *model).step_ns(), layout.step_ns);
    }
  }
  EXPECT_TRUE(is_simulated);
  EXPECT_THAT(found.gains, Contains(Field(&StepGain::kind, "hardware")));
  EXPECT_EQ(found.path.step_ns, run.step_ns());
}

TEST(FindGains, NeighboursAreOneChangeAway) {
  const Layout layout{.tensor = 2, .pipeline = 2, .microbatch = 2, .sequence_parallel = true};
  const std::vector<Layout> list = neighbours(layout);
  for (const Layout& other : list) {
    EXPECT_FALSE(other == layout);
    EXPECT_EQ(other.tensor * other.context * other.data * other.pipeline, 4);
  }
  const auto has = [&](const char* name) {
    return std::ranges::any_of(list, [&](const Layout& it) { return layout_name(it) == name; });
  };
  EXPECT_TRUE(has("pp2 dp2 mb2"));
  EXPECT_TRUE(has("tp2 pp2 mb4"));
  EXPECT_TRUE(has("tp2 pp2 mb1"));
  EXPECT_TRUE(has("tp2 pp2 zb-h1 mb2"));
  EXPECT_TRUE(has("tp2 pp2 mb2 recompute=norms"));
  EXPECT_FALSE(has("tp2 pp2 mb2 recompute=full"));
}

}  // namespace
}  // namespace braid
