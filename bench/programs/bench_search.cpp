// The search for layouts: how long it takes, what it finds beside the layout that NVIDIA publishes,
// and whether simulating ten times as many layouts would have found a faster one.
//   braid_bench_search [part of a name] [--wide N] [--threads N]
// --wide: how many to simulate for that, 0 (the default): none. --threads: 0 (the default): all
// cores. Models, batches and machines are those of three recipes of NVIDIA/dgxc-benchmarking (70B
// on 64, 405B on 512 GPUs), and of a node.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "config/validate.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "tune/describe_search.h"
#include "tune/search_layouts.h"

namespace braid {
namespace {

struct Case {
  std::string_view name;
  std::string_view cluster;
  int64_t global_batch;
  Layout published;
};

std::vector<Case> cases() {
  return {
      {"llama-8b", "h200x8", 128, {.context = 2, .data = 4, .shard = ShardKind::kOptimizer}},
      {"llama-70b",
       "h200x64",
       128,
       {.tensor = 4,
        .context = 2,
        .data = 2,
        .pipeline = 4,
        .virtual_stages = 5,
        .schedule = ScheduleKind::kInterleaved,
        .shard = ShardKind::kOptimizer,
        .sequence_parallel = true}},
      {"llama-405b",
       "h100x512",
       256,
       {.tensor = 8,
        .context = 2,
        .data = 4,
        .pipeline = 8,
        .virtual_stages = 8,
        .schedule = ScheduleKind::kInterleaved,
        .shard = ShardKind::kOptimizer,
        .sequence_parallel = true}},
  };
}

RunConfig config_of(const Case& given, const Cluster& cluster) {
  RunConfig config;
  config.model.preset = given.name;
  config.train.sequence = 8192;
  config.train.global_batch = given.global_batch;
  config.train.dtype = "bfloat16";
  config.parallel.ranks = cluster.num_devices;
  config.parallel.grad_reduce_dtype = "bfloat16";
  config.logging.run_folder = "unused";
  return config;
}

/// Wall and processor seconds of `work`.
template <class Work>
std::pair<double, double> seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu_begin = std::clock();
  work();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return {wall.count(), static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC};
}

void print_published(const Case& given, const RunConfig& config, const CostModel& model) {
  RunConfig laid_out = with_layout(config, given.published);
  validate(laid_out);
  const SimulatedRun run(resolve_run(resolved(laid_out), 0), model, {}, PlannedRanks::kOnePerStage);
  int64_t peak_bytes = 0;
  for (const StageMemory& stage : run.memory_by_stage()) {
    peak_bytes = std::max(peak_bytes, stage.peak_bytes);
  }
  fmt::print("published: {}: {:.3f} s, MFU {:.1f}%, {:.1f} GiB\n", layout_name(given.published),
             static_cast<double>(run.step_ns()) * 1e-9, 100 * run.mfu(),
             static_cast<double>(peak_bytes) * 0x1p-30);
}

void run_case(const Case& given, int64_t num_wide, int num_threads) {
  const Cluster cluster = parse_cluster(given.cluster);
  const auto model = make_analytic_model(cluster);
  const RunConfig config = config_of(given, cluster);
  fmt::print("{} on {}\n", given.name, given.cluster);
  print_published(given, config, *model);
  LayoutSearch found;
  const auto [wall_s, cpu_s] =
      seconds_of([&] { found = search_layouts(config, 0, *model, {.num_threads = num_threads}); });
  fmt::print("{}search: {:.1f} s, {:.1f} processor seconds\n",
             describe_search(found, config, {.rows = 10}), wall_s, cpu_s);
  if (num_wide > 0) {
    LayoutSearch wide;
    const auto [wide_s, wide_cpu_s] = seconds_of([&] {
      wide = search_layouts(config, 0, *model,
                            {.num_simulated = num_wide, .num_threads = num_threads});
    });
    const RankedLayout& best = wide.ranked.front();
    const bool is_found = std::ranges::any_of(
        found.ranked, [&](const RankedLayout& it) { return it.layout == best.layout; });
    fmt::print("wide: {} simulated in {:.1f} processor seconds: {}: {:.3f} s, {}\n",
               wide.counts.simulated, wide_cpu_s, layout_name(best.layout),
               static_cast<double>(best.step_ns) * 1e-9,
               is_found ? "simulated above, too" : "not simulated above");
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  std::string_view name;
  int64_t num_wide = 0;
  int num_threads = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--wide" && i + 1 < argc) {
      num_wide = std::atoll(argv[++i]);
    } else if (std::string_view(argv[i]) == "--threads" && i + 1 < argc) {
      num_threads = std::atoi(argv[++i]);
    } else {
      name = argv[i];
    }
  }
  try {
    for (const braid::Case& each : braid::cases()) {
      if (each.name.find(name) != std::string_view::npos) {
        braid::run_case(each, num_wide, num_threads);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
