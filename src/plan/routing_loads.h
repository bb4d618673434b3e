#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/run_plan.h"
#include "report/records.h"

namespace braid {

/// How unequally routers choose experts, as ranks with different experts feel it. The ranks of a
/// layer wait for each other when rows go there and back, so a layer takes as long as its busiest
/// rank, and a step as long as with the mean of these over the layers.
struct RoutingLoads {
  std::string source;  ///< "Dirichlet(0.5)", "step 500 of runs/a/metrics.jsonl"
  double busiest = 1;  ///< rows of the busiest rank / mean of the ranks, mean over the layers
  double worst = 1;    ///< the same, of the layer where it is largest
};

/// Draws the shares of a layer's experts from a symmetric Dirichlet distribution, kDrawsPerLayer
/// times for each layer with experts, the same on every machine. The smaller `concentration` is,
/// the fewer experts have most of the rows. Throws ConfigError naming --routing-skew if it is not a
/// positive number, or if all ranks have all experts.
RoutingLoads drawn_loads(const RunSpec& run, double concentration);
inline constexpr int kDrawsPerLayer = 16;

/// Those of the last step whose records have the rows of each expert (moe.watch_counts); `source`
/// is their file. Throws ConfigError naming --routing-loads if there are none, if they are of
/// another number of experts, or if all ranks have all experts.
RoutingLoads recorded_loads(const RunSpec& run, const std::vector<ExpertRecord>& records,
                            const std::string& source);

/// Rows of the busiest of `ranks` ranks, each of which has an equal run of the experts, beside the
/// mean. An expert takes at most `capacity` times the mean of the experts (moe.expert_capacity; 0:
/// all). 1 if there are no rows.
double busiest_rank(const std::vector<double>& rows_of_experts, int64_t ranks, double capacity = 0);

/// "skewed    1.01 s per step instead of 812 ms (+24.4%), 80.9K tokens/s; routing by ...".
std::string describe_skewed_step(const RunSpec& run, const RoutingLoads& loads, int64_t balanced_ns,
                                 int64_t skewed_ns);

}  // namespace braid
