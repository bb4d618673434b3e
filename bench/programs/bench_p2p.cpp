// How much of the messages between pipeline stages compute hides in a simulated step, as the keys
// of section [overlap] are turned on one after the other. Each node has one H100, so that every
// message takes the slow link. Every virtual stage has two layers, except the last: it has the
// head, which takes about as long. So no stage makes the others wait, and exposed time is the cost
// of messages.
//   braid_bench_p2p [preset pipeline virtual_stages global_batch GB/s]
//   default: llama-8b 4 4 32 25; with 1 virtual stage the schedule is 1f1b
//   braid_bench_p2p woven [tensor GB/s schedule]
//   the options of pull request 4268 with and without woven pairs, for many P and V and odd numbers
//   of microbatches, over nodes of `tensor` ranks (2); default: interleaved

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
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

/// Messages of one direction, summed over ranks: how long they run, and how long while the rank
/// computes nothing.
struct Messages {
  int64_t total_ns = 0;
  int64_t exposed_ns = 0;

  void add(std::vector<Interval> messages, const std::vector<Interval>& compute) {
    const std::vector<Interval> all = merge_intervals(std::move(messages));
    total_ns += braid::total_ns(all);
    exposed_ns += braid::total_ns(all) - overlap_ns(all, compute);
  }

  double percent() const {
    return total_ns == 0 ? 0
                         : 100.0 * static_cast<double>(exposed_ns) / static_cast<double>(total_ns);
  }
};

/// A rank is in its warm-up until its first backward, and in its cool-down after its last forward.
enum PhaseOfRank : uint8_t { kWarmup, kSteady, kCooldown, kNumPhasesOfRank };

/// Of a message by the place of its task in the program of its rank.
class Phases {
 public:
  explicit Phases(const Program& program) {
    size_t task = 0;
    for (const Task& it : program.tasks) {
      if (it.label.phase == Phase::kForward && it.label.microbatch >= 0) {
        last_forward_ = task;
      }
      if (it.label.phase == Phase::kDgrad && it.label.microbatch >= 0) {
        first_backward_ = std::min(first_backward_, task);
      }
      ++task;
    }
  }

  PhaseOfRank of(size_t task) const {
    return task < first_backward_ ? kWarmup : task <= last_forward_ ? kSteady : kCooldown;
  }

 private:
  size_t first_backward_ = SIZE_MAX;
  size_t last_forward_ = 0;
};

struct Outcome {
  Messages forward;
  Messages backward;
  std::array<Messages, kNumPhasesOfRank> backward_by_phase;
  Messages warmup_sums;  ///< sums over tensor ranks in the warm-up
  int64_t step_ns = 0;
  int64_t step_bytes = 0;  ///< of the rank that needs most
};

/// The tasks of a rank as intervals of simulated time.
struct Intervals {
  std::vector<Interval> compute;
  std::vector<Interval> forward;
  std::array<std::vector<Interval>, kNumPhasesOfRank> backward;
  std::vector<Interval> warmup_sums;

  Intervals(const Program& program, std::span<const TaskTimes> times) {
    const Phases phases(program);
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      const Interval interval{times[i].start_ns, times[i].end_ns};
      const auto group = group_of(program, program.spec(program.tasks[i]));
      if (!group) {
        compute.push_back(interval);
        continue;
      }
      const Group& its = program.groups[group->index()];
      if (its.name == "pipeline.forward") {
        forward.push_back(interval);
      } else if (its.name == "pipeline.backward") {
        backward[phases.of(i)].push_back(interval);
      } else if (its.kind == GroupKind::kTensor && phases.of(i) == kWarmup) {
        warmup_sums.push_back(interval);
      }
    }
    compute = merge_intervals(std::move(compute));
  }
};

Outcome simulate_step(RunConfig config, const CostModel& model) {
  validate(config);
  const SimulatedRun run(resolve_run(resolved(std::move(config)), 0), model);
  const RankPrograms ranks = run.rank_programs();
  Outcome outcome{.step_ns = run.result().step_ns};
  for (const SimRank& rank : run.result().ranks) {
    const Intervals its(*ranks.programs[rank.program], times_of(ranks, run.result(), rank));
    outcome.forward.add(its.forward, its.compute);
    outcome.warmup_sums.add(its.warmup_sums, its.compute);
    std::vector<Interval> backward;
    for (int phase = kWarmup; phase < kNumPhasesOfRank; ++phase) {
      outcome.backward_by_phase[phase].add(its.backward[phase], its.compute);
      backward.insert(backward.end(), its.backward[phase].begin(), its.backward[phase].end());
    }
    outcome.backward.add(std::move(backward), its.compute);
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
               static_cast<double>(outcome.backward.exposed_ns) * 1e-6, outcome.backward.percent(),
               outcome.forward.percent(),
               static_cast<double>(outcome.step_bytes) / (int64_t{1} << 30));
  }
}

/// A pipeline over nodes of `tensor` devices. Each virtual stage has two layers; the last has the
/// head for two of them.
RunConfig pipeline_config(const std::string& preset, int64_t pipeline, int64_t virtual_stages,
                          int64_t tensor, int64_t microbatches) {
  RunConfig config;
  config.model.preset = preset;
  config.train.sequence = 8192;
  config.train.microbatch = 1;
  config.train.dtype = "bfloat16";
  config.train.global_batch = microbatches;
  config.parallel.ranks = pipeline * tensor;
  config.parallel.pipeline = pipeline;
  config.parallel.tensor = tensor;
  config.parallel.sequence_parallel = tensor > 1;
  config.parallel.virtual_stages = virtual_stages;
  config.parallel.schedule = virtual_stages > 1 ? "interleaved" : "1f1b";
  config.logging.run_folder = "unused";
  const int64_t stages = pipeline * virtual_stages;
  config.model.layers = kLayersOfStage * (stages - 1);
  config.parallel.pipeline_layout = fmt::format("Ett|(tt|)*{}L", stages - 2);
  return config;
}

std::unique_ptr<CostModel> model_of(const RunConfig& config, double bytes_per_s) {
  Cluster cluster = make_cluster(*find_device("h100"), static_cast<int>(config.parallel.ranks));
  cluster.devices_per_node = static_cast<int>(config.parallel.tensor);
  cluster.inter_node.bytes_per_s = bytes_per_s;
  return make_analytic_model(cluster);
}

/// The three options of pull request 4268, with pairs or without, and with or without overlap of
/// tensor communication outside of pairs.
OverlapConfig p2p_options(const std::string& pairs, bool tensor) {
  return {.mode = "manual",
          .overlap_grad_reduce = true,
          .pair_forward_backward = pairs,
          .overlap_p2p_comm = true,
          .overlap_p2p_comm_warmup_flush = true,
          .overlap_p2p_backward_on_comm_stream = true,
          .overlap_p2p_wgrad_delayed_layer_number = kLayersOfStage,
          .overlap_p2p_with_transformer_layer_wgrad = true,
          .tp_comm_overlap = tensor};
}

void print_woven(int64_t tensor, double bytes_per_s, const std::string& schedule) {
  fmt::print(
      "| P | V | microbatches | setting | step ms | backward messages exposed | steady | cool-down "
      "| "
      "forward | sums in warm-up exposed | step GiB |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int64_t pipeline : {3, 4, 5, 8}) {
    for (const int64_t virtual_stages : {1, 2, 3, 4}) {
      if ((virtual_stages == 1) == schedule.empty()) {
        continue;
      }
      RunConfig config =
          pipeline_config("llama-8b", pipeline, virtual_stages, tensor, 4 * pipeline + 1);
      if (!schedule.empty()) {
        config.parallel.schedule = schedule;
      }
      if (virtual_stages > 1) {  // groups of an odd number of microbatches
        config.parallel.microbatch_group_size = pipeline / 2 * 2 + 1;
        config.train.global_batch = 5 * config.parallel.microbatch_group_size;
      }
      const auto model = model_of(config, bytes_per_s);
      for (const auto& [setting, pairs, overlaps_tensor] :
           {std::tuple{"no pairs", "none", false},
            {"pairs", "forward_backward", false},
            {"pairs, tp_comm_overlap", "forward_backward", true}}) {
        config.overlap = p2p_options(pairs, overlaps_tensor);
        const Outcome outcome = simulate_step(config, *model);
        fmt::print(
            "| {} | {} | {} | {} | {:.1f} | {:.1f}% | {:.1f}% | {:.1f}% | {:.1f}% | {:.1f}% | "
            "{:.2f} |\n",
            pipeline, virtual_stages, config.train.global_batch, setting,
            static_cast<double>(outcome.step_ns) * 1e-6, outcome.backward.percent(),
            outcome.backward_by_phase[kSteady].percent(),
            outcome.backward_by_phase[kCooldown].percent(), outcome.forward.percent(),
            outcome.warmup_sums.percent(),
            static_cast<double>(outcome.step_bytes) / (int64_t{1} << 30));
      }
    }
  }
}

void run(int argc, char** argv) {
  const auto number = [&](int index, int64_t otherwise) {
    return argc > index ? std::atoll(argv[index]) : otherwise;
  };
  const std::string first = argc > 1 ? argv[1] : "llama-8b";
  if (first == "woven") {
    print_woven(number(2, 2), static_cast<double>(number(3, 25)) * 1e9, argc > 4 ? argv[4] : "");
    return;
  }
  const RunConfig config = pipeline_config(first, number(2, 4), number(3, 4), 1, number(4, 32));
  print_table(config, *model_of(config, static_cast<double>(number(5, 25)) * 1e9));
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
