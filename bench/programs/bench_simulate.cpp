// How long it takes to simulate a step of a large run, from its configuration: programs of all
// ranks that can be told apart, passes (each verified), memory plans, what meets what, prices, the
// run itself, and the analysis of all timelines. Last, one list schedule of its programs.
//   braid_bench_simulate [preset tensor context pipeline virtual_stages data global_batch]
//   default: llama-405b 8 2 16 8 64 2048, which are 16,384 ranks

#include <fmt/core.h>
#include <sys/resource.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <optional>
#include <utility>

#include "config/validate.h"
#include "plan/describe_simulation.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "sim/list_schedule.h"

namespace braid {
namespace {

/// Processor time, so that other load on the machine matters less.
class Clock {
 public:
  double lap() {
    const std::clock_t now = std::clock();
    return static_cast<double>(now - std::exchange(last_, now)) / CLOCKS_PER_SEC;
  }

 private:
  std::clock_t last_ = std::clock();
};

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

void measure(const RunConfig& config) {
  Clock clock;
  const int devices = static_cast<int>((config.parallel.ranks + 7) / 8 * 8);
  const auto model = make_analytic_model(make_cluster(*find_device("h100"), devices));
  const SimulatedRun run(config, 0, *model);
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
  std::array<int64_t, 6> sizes = {8, 2, 16, 8, 64, 2048};
  for (int i = 2; i < argc && i <= 7; ++i) {
    sizes[static_cast<size_t>(i - 2)] = std::atoll(argv[i]);
  }
  braid::RunConfig config;
  config.model.preset = argc > 1 ? argv[1] : "llama-405b";
  config.train.sequence = 8192;
  config.train.global_batch = sizes[5];
  config.train.dtype = "bfloat16";
  config.parallel.tensor = sizes[0];
  config.parallel.sequence_parallel = sizes[0] > 1;
  config.parallel.context = sizes[1];
  config.parallel.pipeline = sizes[2];
  config.parallel.virtual_stages = sizes[3];
  config.parallel.schedule = sizes[3] > 1 ? "interleaved" : "1f1b";
  config.parallel.account_for_embedding = sizes[2] > 1;
  config.parallel.account_for_loss = sizes[2] > 1;
  config.parallel.shard = "optimizer";
  config.parallel.data = sizes[4];
  config.parallel.ranks = sizes[0] * sizes[1] * sizes[2] * sizes[4];
  config.logging.run_folder = "unused";
  try {
    braid::validate(config);
    braid::measure(braid::resolved(config));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
