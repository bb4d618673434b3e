#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "config/validate.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "trace/intervals.h"

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
       {std::tuple{"1f1b", 1, 0.025}, {"interleaved", 2, 0.012}}) {
    RunConfig config = pipeline_run(4, schedule, virtual_stages);
    config.overlap.disable_passes = {"fill_cooldown"};
    const int64_t before_ns = step_ns(config);
    config.overlap.disable_passes.clear();
    EXPECT_LT(static_cast<double>(step_ns(config)), (1 - gain) * static_cast<double>(before_ns))
        << schedule << ", " << virtual_stages << " virtual stages";
  }
}

/// Of the messages of the backward between nodes, on all ranks: the share of their time in which
/// the receiving or sending rank computes nothing.
double exposed_backward_messages(const SimulatedRun& run) {
  const RankPrograms ranks = run.rank_programs();
  double total = 0;
  double hidden = 0;
  for (const SimRank& rank : run.result().ranks) {
    const Program& program = *ranks.programs[rank.program];
    const auto times = times_of(ranks, run.result(), rank);
    std::vector<Interval> compute;
    std::vector<Interval> messages;
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      const auto group = group_of(program, program.spec(program.tasks[i]));
      if (!group) {
        compute.push_back({times[i].start_ns, times[i].end_ns});
      } else if (program.groups[group->index()].name == "pipeline.backward") {
        messages.push_back({times[i].start_ns, times[i].end_ns});
      }
    }
    messages = merge_intervals(std::move(messages));
    total += static_cast<double>(total_ns(messages));
    hidden += static_cast<double>(overlap_ns(messages, merge_intervals(std::move(compute))));
  }
  return 1 - hidden / total;
}

// The setting of Megatron-LM's pull request 4268. When a message was awaited only from its own pair
// on, 42 to 48% were exposed.
TEST(PipelineWaits, PairsHideTheMessagesOfTheBackward) {
  for (const auto& [ranks, virtual_stages] : {std::pair{3, 2}, {3, 4}, {4, 3}, {5, 2}}) {
    const int64_t group = ranks / 2 * 2 + 1;
    RunConfig config = pipeline_run(ranks, "interleaved", virtual_stages);
    config.model.width = 4096;
    config.model.heads = 32;
    config.train.sequence = 8192;
    config.train.global_batch = 5 * group;
    const int64_t stages = ranks * virtual_stages;  // the head takes as long as two layers
    config.model.layers = 2 * (stages - 1);
    config.model.vocabulary = 128256;
    config.parallel.pipeline_layout = fmt::format("Ett|(tt|)*{}L", stages - 2);
    config.parallel.microbatch_group_size = group;
    config.parallel.tensor = 2;
    config.parallel.ranks = 2 * ranks;
    config.parallel.sequence_parallel = true;
    config.overlap = {.mode = "manual",
                      .pair_forward_backward = "forward_backward",
                      .overlap_p2p_comm = true,
                      .overlap_p2p_comm_warmup_flush = true,
                      .overlap_p2p_backward_on_comm_stream = true,
                      .overlap_p2p_wgrad_delayed_layer_number = 2,
                      .overlap_p2p_with_transformer_layer_wgrad = true};
    Cluster cluster = make_cluster(*find_device("h100"), 2 * ranks);
    cluster.devices_per_node = 2;
    cluster.inter_node.bytes_per_s = 25e9;
    validate(config);
    const auto model = make_analytic_model(cluster);
    const SimulatedRun run(resolve_run(resolved(config), 0), *model, {},
                           PlannedRanks::kOnePerStage);
    EXPECT_LT(exposed_backward_messages(run), 0.05)
        << ranks << " ranks, " << virtual_stages << " virtual stages";
  }
}

}  // namespace
}  // namespace braid
