#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "config/validate.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

// What ranks of a pipeline wait for, in simulated time: tasks are long enough to hide messages.

RunConfig pipeline_run(int64_t ranks, const std::string& schedule, int64_t virtual_stages) {
  RunConfig config;
  config.model.layers = ranks * virtual_stages;
  config.model.width = 2048;
  config.model.heads = 16;
  config.model.vocabulary = 1024;
  config.train.sequence = 4096;
  config.train.global_batch = 3 * ranks;
  config.train.dtype = "bfloat16";
  config.parallel.ranks = ranks;
  config.parallel.pipeline = ranks;
  config.parallel.schedule = schedule;
  config.parallel.virtual_stages = virtual_stages;
  config.data.train = "unused";
  config.logging.run_folder = "unused";
  return config;
}

int64_t step_ns(RunConfig config) {
  validate(config);
  config = resolved(config);
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  return SimulatedRun(resolve_run(config, 0), *model).step_ns();
}

// With messages of the backward on the compute stream an earlier one made its sender wait for the
// receiver, which came no sooner, and round the ranks these waits added up: 21% of a step.
TEST(PipelineWaits, DelayedWeightGradientsCostNothing) {
  for (const auto& [schedule, virtual_stages] : {std::pair{"1f1b", 1}, {"interleaved", 2}}) {
    RunConfig config = pipeline_run(4, schedule, virtual_stages);
    config.overlap.mode = "manual";
    config.overlap.overlap_p2p_comm = true;
    const int64_t plain_ns = step_ns(config);
    config.overlap.overlap_p2p_wgrad_delayed_layer_number = 1;
    config.overlap.overlap_p2p_with_transformer_layer_wgrad = true;
    EXPECT_LT(step_ns(config), plain_ns) << schedule << ", " << virtual_stages << " virtual stages";
  }
}

// The last rank keeps weight gradients for when its last gradient passes the others. In memory that
// other ranks need anyway.
TEST(PipelineWaits, WeightGradientsFillTheCooldown) {
  for (const auto& [schedule, virtual_stages, gain] :
       {std::tuple{"1f1b", 1, 0.025}, {"interleaved", 2, 0.015}}) {
    RunConfig config = pipeline_run(4, schedule, virtual_stages);
    config.overlap.disable_passes = {"fill_cooldown"};
    const int64_t before_ns = step_ns(config);
    config.overlap.disable_passes.clear();
    EXPECT_LT(static_cast<double>(step_ns(config)), (1 - gain) * static_cast<double>(before_ns))
        << schedule << ", " << virtual_stages << " virtual stages";
  }
}

}  // namespace
}  // namespace braid
