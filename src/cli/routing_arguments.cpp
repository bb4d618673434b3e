#include "cli/routing_arguments.h"

#include "base/errors.h"
#include "base/text.h"
#include "report/metrics_file.h"

namespace braid {

void add_routing_options(CLI::App& command, RoutingArguments& arguments) {
  CLI::Option* const skew =
      command
          .add_option("--routing-skew", arguments.skew,
                      "Also predict the step with unequal loads of experts: shares of each layer "
                      "drawn from a Dirichlet distribution with this concentration (100: almost "
                      "equal, 1: very unequal)")
          ->type_name("A");
  command
      .add_option("--routing-loads", arguments.loads,
                  "The same with the loads that a run has recorded last (moe.watch_counts): a "
                  "metrics.jsonl")
      ->type_name("FILE")
      ->excludes(skew);
}

std::optional<RoutingLoads> routing_loads(const RoutingArguments& arguments, const RunSpec& run) {
  if (arguments.skew) {
    return drawn_loads(run, *arguments.skew);
  }
  if (arguments.loads.empty()) {
    const double forced = run.config.moe.force_skew;
    return forced > 0 && run.mesh.sizes().expert > 1 ? std::optional(drawn_loads(run, forced))
                                                     : std::nullopt;
  }
  const Metrics metrics = read_metrics(arguments.loads);
  if (metrics.steps.empty() && metrics.experts.empty()) {
    throw_config_error(
        "--routing-loads {}: no such file, or it has no records; give the "
        "metrics.jsonl of a run folder",
        quote(arguments.loads));
  }
  return recorded_loads(run, metrics.experts, arguments.loads);
}

}  // namespace braid
