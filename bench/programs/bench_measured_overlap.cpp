// What overlap gains on CPU ranks with emulated links, measured by the executors' own traces,
// and predicted by the simulator. Compute tasks sleep for the time that a cost model gives them, so
// that neither figure depends on the machine's cores or other load. This measures streams, events,
// ranks that wait for each other, and links. bench/end_to_end/measured_overlap.sh measures with
// real kernels. A machine that wakes threads up late (a busy one) lengthens every wait of one rank
// for another; SLOWNESS lengthens tasks and links alike, so that this matters less.
//   braid_bench_measured_overlap [SLOWNESS] [layout ...]
//   default: 1, all layouts

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cpu/cpu_executor.h"
#include "backends/run_ranks.h"
#include "comm/transport.h"
#include "config/load.h"
#include "config/validate.h"
#include "plan/parallel_setup.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "sim/linked_model.h"
#include "trace/step_summary.h"

namespace braid {
namespace {

constexpr int kWarmUpSteps = 1;
constexpr int kSteps = 3;

/// A layout, and keys for its step without and with overlap.
struct Layout {
  std::string name;
  std::vector<std::string> settings;
  std::vector<std::string> off = {"overlap.mode=off"};
  std::vector<std::string> on = {"overlap.mode=auto"};
};

std::vector<Layout> all_layouts() {
  const std::vector<std::string> pipeline = {"parallel.pipeline=2", "train.microbatch=2",
                                             "links.pipeline_gb_per_s=0.0012"};
  std::vector<std::string> messages = {"overlap.mode=manual", "overlap.overlap_p2p_comm=true",
                                       "overlap.overlap_p2p_comm_warmup_flush=true",
                                       "overlap.overlap_p2p_backward_on_comm_stream=true"};
  std::vector<std::string> delayed = messages;
  delayed.insert(delayed.end(), {"overlap.overlap_p2p_wgrad_delayed_layer_number=1",
                                 "overlap.overlap_p2p_with_transformer_layer_wgrad=true"});
  return {
      {"dp2", {"train.microbatch=4", "links.data_gb_per_s=0.002"}},
      {"dp2 shard=parameters",
       {"train.microbatch=4", "parallel.shard=parameters", "links.data_gb_per_s=0.003"}},
      {"dp4", {"parallel.ranks=4", "train.microbatch=2", "links.data_gb_per_s=0.004"}},
      {"tp2 sp",
       {"parallel.tensor=2", "parallel.sequence_parallel=true", "train.microbatch=4",
        "memory.recompute=norms", "links.tensor_gb_per_s=0.008"}},
      {"cp2 ring",
       {"parallel.context=2", "train.microbatch=4", "links.context_gb_per_s=0.003",
        "links.data_gb_per_s=0.1"}},
      {"pp2 1f1b", pipeline},
      {"pp2 wgrads delayed", pipeline, messages, delayed},
      {"pp2 dp2",
       {"parallel.ranks=4", "parallel.pipeline=2", "train.microbatch=1",
        "links.pipeline_gb_per_s=0.0012", "links.data_gb_per_s=0.004"}},
  };
}

RunConfig config_of(const Layout& layout, const std::vector<std::string>& mode) {
  std::vector<std::string> settings = layout.settings;
  settings.insert(settings.end(), mode.begin(), mode.end());
  RunConfig config = load_config("bench/end_to_end/measured_overlap.toml", settings);
  config.model.width = 64;  // data that nobody waits for
  validate(config);
  return resolved(std::move(config));
}

/// Tasks take so many times as long as a model says, in whole microseconds.
class Slowed final : public CostModel {
 public:
  Slowed(std::unique_ptr<CostModel> model, int64_t factor)
      : model_(std::move(model)), factor_(factor) {}

  Cost task_cost(const OpSpec& spec) const override {
    return {.ns = model_->task_ns(spec) * factor_ / 1000 * 1000};
  }
  Cost comm_cost(const CommSpec& /*spec*/) const override { return {.ns = 1000}; }
  Cost host_copy_cost(HostCopy direction, int64_t bytes) const override {
    return model_->host_copy_cost(direction, bytes);
  }
  const Contention& contention() const override { return model_->contention(); }
  const Cluster& cluster() const override { return model_->cluster(); }
  int64_t launch_ns() const override { return 0; }
  int64_t step_overhead_ns() const override { return 0; }
  std::string description() const override { return "slowed " + model_->description(); }

 private:
  std::unique_ptr<CostModel> model_;
  int64_t factor_;
};

/// Sleeps for as long as a task takes. What a wake-up comes late is taken off the next sleep of the
/// thread (a stream), so that a busy machine does not lengthen every task.
void sleep_as_task(int64_t time_ns) {
  using Clock = std::chrono::steady_clock;
  thread_local int64_t late_ns = 0;
  const Clock::time_point begin = Clock::now();
  const int64_t rest_ns = time_ns - late_ns;
  if (rest_ns > 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(rest_ns));
  }
  late_ns = std::chrono::nanoseconds(Clock::now() - begin).count() - rest_ns;
}

/// Kernels that take their time and do nothing else.
CpuKernelFactory sleeping_kernels(const CostModel& model) {
  return [&model](const OpSpec& spec, int /*num_workers*/) {
    const int64_t time_ns = model.task_ns(spec);
    return CpuKernel{.run = [time_ns](const KernelArgs&) { sleep_as_task(time_ns); }};
  };
}

/// All ranks of a plan, with kernels that sleep.
class PacedRanks {
 public:
  PacedRanks(const RunPlan& plan, const LinkOptions& links, const CostModel& model)
      : transports_(
            make_in_process_transports({.num_ranks = plan.run.mesh.num_ranks(), .links = links})) {
    for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      executors_.push_back(std::make_unique<CpuExecutor>(
          plan.ranks[rank].programs, plan.ranks[rank].memory,
          CpuExecutorOptions{.transport = transports_[rank].get(),
                             .make_kernel = sleeping_kernels(model)}));
      executors_.back()->set_tracing(true);
      pointers_.push_back(executors_.back().get());
    }
  }

  StepSummary step() {
    run_ranks(pointers_, kTrainProgram);
    Timeline timeline{.source = "cpu", .ranks = {}};
    for (const auto& executor : executors_) {
      timeline.ranks.push_back(executor->timeline());
    }
    return summarize_step(timeline);
  }

 private:
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<Executor*> pointers_;
};

struct Figures {
  StepSummary measured;  ///< the shortest step: nothing but the machine makes one longer
  StepSummary predicted;
};

Figures figures_of(const RunConfig& config, int64_t slowness) {
  constexpr int64_t kFactor = 400;
  LinkOptions links = link_options(config.links);
  for (LinkSpec& link : links.by_kind) {
    link.latency_ns *= slowness;
    link.bytes_per_s /= static_cast<double>(slowness);
  }
  const auto num_ranks = static_cast<int>(config.parallel.ranks);
  const auto model = make_linked_model(
      std::make_unique<Slowed>(make_analytic_model(make_cluster(*find_device("cpu"), num_ranks)),
                               kFactor * slowness),
      links);
  const SimulatedRun simulated(resolve_run(config, 0), *model, {.starts_on_arrival = true});
  std::vector<int> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(rank);
  }
  const RunPlan plan = plan_run(resolve_run(config, 0));
  PacedRanks paced(plan, links, *model);
  std::vector<StepSummary> steps;
  for (int i = 0; i < kWarmUpSteps + kSteps; ++i) {
    const StepSummary step = paced.step();
    if (i >= kWarmUpSteps) {
      steps.push_back(step);
    }
  }
  const auto shortest = std::min_element(
      steps.begin(), steps.end(),
      [](const StepSummary& a, const StepSummary& b) { return a.step_ns < b.step_ns; });
  return {.measured = *shortest, .predicted = summarize_step(simulated.timeline(ranks))};
}

double percent(double part, double whole) {
  return 100.0 * part / whole;
}

double error(double measured, double predicted) {
  return percent(predicted, measured) - 100.0;
}

void print_row(const Layout& layout, int64_t slowness) {
  const Figures off = figures_of(config_of(layout, layout.off), slowness);
  const Figures on = figures_of(config_of(layout, layout.on), slowness);
  const auto exposed = [](const StepSummary& step) {
    return percent(step.communication.exposed_ns, step.step_ns);
  };
  fmt::print(
      "| {} | {:.0f} | {:.0f} | {:.1f}% | {:.1f}% | {:.1f}% | {:.0f}, {:.0f} | {:+.1f}%, {:+.1f}% "
      "| "
      "{:.1f}%, {:.1f}% | {:.1f}% |\n",
      layout.name, off.measured.step_ns * 1e-6, on.measured.step_ns * 1e-6, exposed(off.measured),
      exposed(on.measured), percent(off.measured.step_ns, on.measured.step_ns) - 100.0,
      off.predicted.step_ns * 1e-6, on.predicted.step_ns * 1e-6,
      error(off.measured.step_ns, off.predicted.step_ns),
      error(on.measured.step_ns, on.predicted.step_ns), exposed(off.predicted),
      exposed(on.predicted), percent(off.predicted.step_ns, on.predicted.step_ns) - 100.0);
  std::fflush(stdout);
}

void run(int64_t slowness, const std::vector<std::string>& names) {
  fmt::print(
      "| layout | off, ms | on, ms | exposed before | after | gain | predicted off, on | error | "
      "predicted exposed | gain |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- "
      "|\n");
  for (const Layout& layout : all_layouts()) {
    if (names.empty() || std::find(names.begin(), names.end(), layout.name) != names.end()) {
      print_row(layout, slowness);
    }
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    const int64_t slowness = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
    braid::run(slowness, {argv + std::min(argc, 2), argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
