#include "plan/device_cost.h"

#include "base/errors.h"
#include "base/text.h"
#include "sim/cluster.h"
#include "sim/device_spec.h"

namespace braid {
namespace {

std::string cluster_of_run(const DeviceSpec& device, const RunConfig& config,
                           int64_t ranks_per_host = 0) {
  return cluster_for_ranks(device, static_cast<int>(config.parallel.ranks),
                           static_cast<int>(ranks_per_host))
      .name;
}

}  // namespace

RunConfig with_device_cost(RunConfig config, const std::optional<std::string>& gpu_name,
                           int64_t ranks_per_host) {
  if (config.overlap.cost != kDeviceCost) {
    return config;
  }
  if (!gpu_name) {
    throw_config_error(
        "overlap.cost = \"device\": the run is on a CPU, and braid has no data sheet for CPUs; "
        "give the path of a profile of `braid calibrate`, or remove overlap.cost");
  }
  const DeviceSpec* const spec = device_by_name(*gpu_name);
  if (spec == nullptr || spec->is_host) {
    throw_config_error(
        "overlap.cost = \"device\": braid has no data sheet for {}, only for {}; name the most "
        "similar one, as in overlap.cost = \"{}\", or give the path of a profile of `braid "
        "calibrate`",
        quote(*gpu_name, 60), known_device_names(),
        cluster_of_run(*find_device("a100"), config, ranks_per_host));
  }
  config.overlap.cost = cluster_of_run(*spec, config, ranks_per_host);
  return config;
}

void check_cost_is_named(const RunConfig& config) {
  if (config.overlap.cost == kDeviceCost) {
    throw_config_error(
        "overlap.cost = \"device\": means the GPU that `braid train` finds, and this command does "
        "not look for one; name one of {}: --set overlap.cost={}, or `braid plan --cost`, `braid "
        "simulate --cluster`",
        known_device_names(), cluster_of_run(*find_device("h200"), config));
  }
}

}  // namespace braid
