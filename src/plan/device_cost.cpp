#include "plan/device_cost.h"

#include <fmt/core.h>

#include "base/errors.h"
#include "base/text.h"
#include "sim/cluster.h"
#include "sim/device_spec.h"

namespace braid {
namespace {

/// The smallest cluster of that device with one for each rank.
std::string cluster_for_ranks(std::string_view kind, int64_t num_ranks) {
  const int64_t per_node = make_cluster(*find_device(kind), 1).devices_per_node;
  const int64_t in_whole_nodes = (num_ranks + per_node - 1) / per_node * per_node;
  return fmt::format("{}x{}", kind, num_ranks <= per_node ? num_ranks : in_whole_nodes);
}

}  // namespace

RunConfig with_device_cost(RunConfig config, const std::optional<std::string>& gpu_name) {
  if (config.overlap.cost != kDeviceCost) {
    return config;
  }
  if (!gpu_name) {
    throw_config_error(
        "overlap.cost = \"device\": the run is on a CPU, of which no data sheet says what tasks "
        "take; give the path of a profile of `braid calibrate`, or remove overlap.cost");
  }
  const DeviceSpec* const spec = device_by_name(*gpu_name);
  if (spec == nullptr || spec->kind == "cpu") {
    throw_config_error(
        "overlap.cost = \"device\": braid has no data sheet of {}, but of {}; name the one that is "
        "most like it, as in overlap.cost = \"{}\", or give the path of a profile of `braid "
        "calibrate`",
        quote(*gpu_name, 60), known_device_names(),
        cluster_for_ranks("a100", config.parallel.ranks));
  }
  config.overlap.cost = cluster_for_ranks(spec->kind, config.parallel.ranks);
  return config;
}

void check_cost_is_named(const RunConfig& config) {
  if (config.overlap.cost == kDeviceCost) {
    throw_config_error(
        "overlap.cost = \"device\": stands for the GPU that `braid train` finds, and none is "
        "looked "
        "for here; name one of {}: --set overlap.cost={}, or `braid plan --cost`, `braid simulate "
        "--cluster`",
        known_device_names(), cluster_for_ranks("h200", config.parallel.ranks));
  }
}

}  // namespace braid
