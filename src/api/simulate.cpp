#include <memory>
#include <optional>
#include <utility>

#include "api/run_state.h"
#include "plan/describe_simulation.h"
#include "plan/device_cost.h"
#include "plan/row_exchange_setup.h"
#include "plan/run_costs.h"
#include "plan/run_spec.h"
#include "plan/simulated_run.h"
#include "runtime/choose_settings.h"
#include "runtime/memory_check.h"
#include "sim/measured_model.h"

namespace braid::api {
namespace {

/// What the run leaves open, chosen for the device that is simulated.
RunSpec settings_for(const CostModel& model, RunConfig config, int64_t vocabulary,
                     const std::string& machine) {
  config = with_exchange(std::move(config), model.cluster());
  if (config.overlap.cost == kDeviceCost) {
    config.overlap.cost = machine;
  }
  const std::optional<GpuMemory> gpu = memory_of(model.cluster().device);
  std::optional<RunMemory> memory;
  if (gpu) {
    memory = RunMemory{.gpu = gpu, .host_bytes = std::nullopt};
  }
  return choose_settings(resolve_run(config, vocabulary), memory);
}

Simulation simulation_result(const SimulatedRun& run) {
  const SimulatedMeans& means = run.means();
  Simulation result;
  result.step_ns = run.step_ns();
  result.tokens_per_s = run.tokens_per_s();
  result.mfu = run.mfu();
  result.compute_ns = means.compute_ns;
  result.exposed_ns = means.all_exposed_ns;
  result.idle_ns = means.idle_ns();
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    if (means.communication_ns[kind] > 0) {
      result.communication.push_back(
          {.kind = std::string(group_kind_name(static_cast<GroupKind>(kind))),
           .total_ns = means.communication_ns[kind],
           .exposed_ns = means.exposed_ns[kind]});
    }
  }
  const SimulationDetails details{.path = step_path(run)};
  result.description = describe_simulation(run, details);
  result.json = simulation_json(run, details);
  return result;
}

}  // namespace

Simulation Run::simulate(const SimulateOptions& options) const {
  return with_public_errors([&] {
    auto [config, vocabulary] = state_->planned;
    if (options.num_ranks != 0) {
      config = scaled_to_ranks(std::move(config), options.num_ranks);
    }
    const auto model = with_links_of_run(
        load_cost_model(options.machine, static_cast<int>(config.parallel.ranks)), config.links);
    return simulation_result(
        SimulatedRun(settings_for(*model, std::move(config), vocabulary, options.machine), *model,
                     {.contention = options.contention}));
  });
}

}  // namespace braid::api
