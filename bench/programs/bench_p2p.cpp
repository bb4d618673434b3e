// How much of the messages between pipeline stages compute hides in a simulated step, as the keys
// of section [overlap] are turned on one after the other. Each node has one H100, so that every
// message takes the slow link. Every virtual stage has two layers, except the last: it has the
// head, which takes about as long. So no stage makes the others wait, and exposed time is the cost
// of messages.
//   braid_bench_p2p [preset pipeline virtual_stages global_batch GB/s]
//   default: llama-8b 4 4 32 25; with 1 virtual stage the schedule is 1f1b

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "config/validate.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Disjoint and ascending.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  std::vector<Interval> result;
  for (const Interval& it : intervals) {
    if (!result.empty() && it.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, it.end);
    } else if (it.begin < it.end) {
      result.push_back(it);
    }
  }
  return result;
}

int64_t length(const std::vector<Interval>& intervals) {
  int64_t sum = 0;
  for (const Interval& it : intervals) {
    sum += it.end - it.begin;
  }
  return sum;
}

/// Time in both; each is disjoint and ascending.
int64_t shared(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  int64_t sum = 0;
  size_t first = 0;
  for (const Interval& it : a) {
    while (first < b.size() && b[first].end <= it.begin) {
      ++first;
    }
    for (size_t i = first; i < b.size() && b[i].begin < it.end; ++i) {
      sum += std::min(it.end, b[i].end) - std::max(it.begin, b[i].begin);
    }
  }
  return sum;
}

/// Messages of one direction, summed over ranks: how long they run, and how long while the rank
/// computes nothing.
struct Messages {
  int64_t total_ns = 0;
  int64_t exposed_ns = 0;

  void add(std::vector<Interval> messages, const std::vector<Interval>& compute) {
    const std::vector<Interval> all = united(std::move(messages));
    total_ns += length(all);
    exposed_ns += length(all) - shared(all, compute);
  }
};

struct Outcome {
  Messages forward;
  Messages backward;
  int64_t step_ns = 0;
  int64_t step_bytes = 0;  ///< of the rank that needs most
};

Outcome simulate_step(RunConfig config, const CostModel& model) {
  validate(config);
  const SimulatedRun run(resolve_run(resolved(std::move(config)), 0), model);
  const RankPrograms ranks = run.rank_programs();
  Outcome outcome{.step_ns = run.result().step_ns};
  for (const SimRank& rank : run.result().ranks) {
    const Program& program = *ranks.programs[rank.program];
    const auto times = times_of(ranks, run.result(), rank);
    std::vector<Interval> compute;
    std::vector<Interval> forward;
    std::vector<Interval> backward;
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      const Task& task = program.tasks[i];
      const Interval interval{times[i].start_ns, times[i].end_ns};
      const auto group = group_of(program, program.spec(task));
      if (!group) {
        compute.push_back(interval);
      } else if (program.groups[group->index()].name == "pipeline.forward") {
        forward.push_back(interval);
      } else if (program.groups[group->index()].name == "pipeline.backward") {
        backward.push_back(interval);
      }
    }
    compute = united(std::move(compute));
    outcome.forward.add(std::move(forward), compute);
    outcome.backward.add(std::move(backward), compute);
  }
  for (const RankPlan& rank : run.plan().ranks) {
    outcome.step_bytes = std::max(outcome.step_bytes, rank.memory.step_bytes);
  }
  return outcome;
}

struct Setting {
  std::string name;
  OverlapConfig overlap;
};

constexpr int64_t kLayersOfStage = 2;

std::vector<Setting> settings() {
  OverlapConfig overlap{.mode = "manual", .overlap_grad_reduce = true};
  std::vector<Setting> list = {{"off", {.mode = "off"}}};
  overlap.overlap_p2p_comm = true;
  list.push_back({"overlap_p2p_comm", overlap});
  overlap.overlap_p2p_comm_warmup_flush = true;
  list.push_back({"and warmup_flush", overlap});
  overlap.overlap_p2p_wgrad_delayed_layer_number = 1;
  list.push_back({"and attention of 1 layer delayed", overlap});
  overlap.overlap_p2p_backward_on_comm_stream = true;
  list.push_back({"and backward_on_comm_stream", overlap});
  overlap.overlap_p2p_with_transformer_layer_wgrad = true;
  list.push_back({"and all of the layer delayed", overlap});
  overlap.overlap_p2p_wgrad_delayed_layer_number = kLayersOfStage;
  list.push_back({"and all layers delayed", overlap});
  list.push_back({"auto", {}});
  return list;
}

double percent(const Messages& messages) {
  return messages.total_ns == 0 ? 0
                                : 100.0 * static_cast<double>(messages.exposed_ns) /
                                      static_cast<double>(messages.total_ns);
}

void print_table(RunConfig config, const CostModel& model) {
  fmt::print(
      "| setting | step ms | backward P2P ms, all ranks | exposed ms | exposed | forward exposed | "
      "step GiB |\n| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Setting& setting : settings()) {
    config.overlap = setting.overlap;
    const Outcome outcome = simulate_step(config, model);
    fmt::print("| {} | {:.1f} | {:.1f} | {:.2f} | {:.1f}% | {:.1f}% | {:.2f} |\n", setting.name,
               static_cast<double>(outcome.step_ns) * 1e-6,
               static_cast<double>(outcome.backward.total_ns) * 1e-6,
               static_cast<double>(outcome.backward.exposed_ns) * 1e-6, percent(outcome.backward),
               percent(outcome.forward),
               static_cast<double>(outcome.step_bytes) / (int64_t{1} << 30));
  }
}

void run(int argc, char** argv) {
  const auto number = [&](int index, int64_t otherwise) {
    return argc > index ? std::atoll(argv[index]) : otherwise;
  };
  RunConfig config;
  config.model.preset = argc > 1 ? argv[1] : "llama-8b";
  config.train.sequence = 8192;
  config.train.microbatch = 1;
  config.train.dtype = "bfloat16";
  config.parallel.ranks = number(2, 4);
  config.parallel.pipeline = config.parallel.ranks;
  config.parallel.virtual_stages = number(3, 4);
  config.parallel.schedule = config.parallel.virtual_stages > 1 ? "interleaved" : "1f1b";
  config.train.global_batch = number(4, 32);
  config.logging.run_folder = "unused";
  Cluster cluster = make_cluster(*find_device("h100"), static_cast<int>(config.parallel.ranks));
  cluster.devices_per_node = 1;
  cluster.inter_node.bytes_per_s = static_cast<double>(number(5, 25)) * 1e9;
  const auto model = make_analytic_model(cluster);
  const int64_t stages = config.parallel.pipeline * config.parallel.virtual_stages;
  config.model.layers = kLayersOfStage * (stages - 1);
  config.parallel.pipeline_layout = fmt::format("Ett|(tt|)*{}L", stages - 2);
  print_table(config, *model);
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    braid::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
