// How long it takes to simulate a step of a large run, from its configuration: programs of all
// ranks that can be told apart, passes (each verified), memory plans, what meets what, prices, the
// run itself, and the analysis of all timelines. Last, one list schedule of its programs.
//   braid_bench_simulate [preset tensor context pipeline virtual_stages data global_batch]
//   default: llama-405b 8 2 16 8 64 2048, which are 16,384 ranks

#include <fmt/core.h>

#include <exception>
#include <optional>

#include "config/validate.h"
#include "large_layout.h"
#include "plan/describe_simulation.h"
#include "plan/simulated_run.h"
#include "process_use.h"
#include "sim/analytic_model.h"
#include "sim/list_schedule.h"

namespace braid {
namespace {

void measure(const RunConfig& config) {
  ProcessorClock clock;
  const int devices = static_cast<int>((config.parallel.ranks + 7) / 8 * 8);
  const auto model = make_analytic_model(make_cluster(*find_device("h100"), devices));
  const SimulatedRun run(resolve_run(config, 0), *model);
  const double all_s = clock.lap();
  fmt::print("{}", describe_simulation(run));

  const RankPrograms ranks = run.rank_programs();
  clock.lap();
  Simulator simulator(ranks, *model);
  const double prepare_s = clock.lap();
  simulator.run();
  const double run_s = clock.lap();
  fmt::print(
      "all {:.2f} s; of these preparing the simulator {:.2f} s, one run {:.2f} s = {:.0f} ns "
      "per task; peak {:.2f} GiB\n",
      all_s, prepare_s, run_s, run_s * 1e9 / static_cast<double>(run.result().times.size()),
      peak_gib());
  clock.lap();
  const std::optional<ListSchedule> schedule = list_schedule(ranks, *model);
  const double schedule_s = clock.lap();
  fmt::print("one list schedule {:.2f} s; without contention {:.3f} s become {:.3f} s\n",
             schedule_s, static_cast<double>(simulator.run({.contention = false}).step_ns) * 1e-9,
             schedule ? static_cast<double>(schedule->step_ns) * 1e-9 : 0.0);
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  braid::RunConfig config = braid::layout_of_arguments(argc, argv);
  config.parallel.shard = "optimizer";
  try {
    braid::validate(config);
    braid::measure(braid::resolved(config));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
