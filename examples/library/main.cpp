// Plans a run, simulates it on eight H200, compares its layout with one rank, and trains until the
// loss is below a limit:
//   plan_and_train run.toml [section.key=value ...]
#include <braid/braid.h>

#include <cstdio>

namespace api = braid::api;

namespace {

void plan_and_train(const api::Run& run) {
  for (const api::RankPlan& rank : run.plan().ranks) {
    std::printf("rank %d: %lld tasks, %.1f MiB\n", rank.rank,
                static_cast<long long>(rank.num_tasks),
                static_cast<double>(rank.peak_bytes) / (1 << 20));
  }
  api::SimulateOptions cluster;
  cluster.machine = "h200x8";
  const api::Simulation simulated = run.simulate(cluster);
  std::printf("simulated: %.3f ms a step, %.3f ms of communication exposed\n",
              simulated.step_ns / 1e6, simulated.exposed_ns / 1e6);
  std::printf("layout equals one rank: %s\n", run.verify().equal ? "yes" : "no");

  api::TrainOptions options;
  options.on_step = [](const api::TrainStep& step) {
    std::printf("step %lld: loss %.3f, gradient norm %.3f, %.0f tokens/s\n",
                static_cast<long long>(step.step), step.loss, step.grad_norm, step.tokens_per_s);
    return step.loss > 2.5;  // false ends the run
  };
  const api::TrainResult result = run.train(options);
  std::printf("%s after step %lld: %s\n", result.stopped_early ? "stopped" : "finished",
              static_cast<long long>(result.last_step), result.report.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    plan_and_train(
        api::Run::load(argc > 1 ? argv[1] : "", {argv + (argc > 2 ? 2 : argc), argv + argc}));
    return 0;
  } catch (const api::Error& error) {
    std::fprintf(stderr, "plan_and_train: %s\n", error.what());
    return error.kind() == api::ErrorKind::kConfig ? 2 : 1;
  }
}
