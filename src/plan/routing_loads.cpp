#include "plan/routing_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "base/text.h"
#include "model/blocks/registry.h"
#include "plan/dirichlet.h"

namespace braid {
namespace {

void require_ranks(const RunSpec& run, const char* option) {
  if (run.mesh.sizes().expert == 1) {
    throw_config_error(
        "{}: all ranks have all experts, so routing makes none wait; set "
        "parallel.expert, or remove the option",
        option);
  }
}

int64_t layers_with_experts(const RunSpec& run) {
  return std::ranges::count(run.model.layers, &kMoeBlock, &LayerSpec::feed_forward);
}

RoutingLoads loads_from(std::string source, const std::vector<double>& busiest) {
  return {.source = std::move(source),
          .busiest = std::accumulate(busiest.begin(), busiest.end(), 0.0) /
                     static_cast<double>(busiest.size()),
          .worst = *std::ranges::max_element(busiest)};
}

double percent_more(double more, double than) {
  return than > 0 ? (more / than - 1) * 100 : 0;
}

/// "Dirichlet(0.5): the busiest of 8 ranks has 1.62 times the mean, ...".
std::string loads_text(const RunSpec& run, const RoutingLoads& loads) {
  const double capacity = run.model.router.expert_capacity;
  return fmt::format(
      "routing by {}: the busiest of {} ranks has {:.3g} times the rows of equal "
      "loads, {:.3g} in the worst layer, {}",
      loads.source, run.mesh.sizes().expert, loads.busiest, loads.worst,
      capacity > 0
          ? fmt::format("with moe.expert_capacity = {:.3g}", capacity)
          : fmt::format("which needs moe.capacity = {:.3g}", std::ceil(loads.worst * 1e3) / 1e3));
}

}  // namespace

double busiest_rank(const std::vector<double>& rows_of_experts, int64_t ranks, double capacity) {
  const auto local = std::ssize(rows_of_experts) / ranks;
  const double all = std::accumulate(rows_of_experts.begin(), rows_of_experts.end(), 0.0);
  const double taken =
      capacity == 0 ? all : capacity * all / static_cast<double>(std::ssize(rows_of_experts));
  double most = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto begin = rows_of_experts.begin() + rank * local;
    most = std::max(most, std::accumulate(begin, begin + local, 0.0, [&](double sum, double rows) {
                      return sum + std::min(rows, taken);
                    }));
  }
  return all > 0 ? most * static_cast<double>(ranks) / all : 1;
}

RoutingLoads drawn_loads(const RunSpec& run, double concentration) {
  if (!std::isfinite(concentration) || concentration <= 0) {
    throw_config_error("--routing-skew {}: must be a positive number; 1 is much skew, 100 little",
                       concentration);
  }
  require_ranks(run, "--routing-skew");
  DirichletDraws draws(run.model.experts, concentration);
  std::vector<double> busiest;
  for (int64_t i = 0; i < layers_with_experts(run) * kDrawsPerLayer; ++i) {
    busiest.push_back(
        busiest_rank(draws.next(), run.mesh.sizes().expert, run.model.router.expert_capacity));
  }
  return loads_from(fmt::format("Dirichlet({})", concentration), busiest);
}

std::string describe_skewed_step(const RunSpec& run, const RoutingLoads& loads, int64_t balanced_ns,
                                 int64_t skewed_ns) {
  const double step_s = static_cast<double>(skewed_ns) * 1e-9;
  const double tokens_per_s = static_cast<double>(run.tokens_per_step()) / step_s;
  return fmt::format("skewed    {} per step instead of {} (+{:.1f}%), {} tokens/s; {}\n",
                     format_duration(step_s),
                     format_duration(static_cast<double>(balanced_ns) * 1e-9),
                     percent_more(step_s * 1e9, static_cast<double>(balanced_ns)),
                     format_count(std::llround(tokens_per_s)), loads_text(run, loads));
}

RoutingLoads recorded_loads(const RunSpec& run, const std::vector<ExpertRecord>& records,
                            const std::string& source) {
  require_ranks(run, "--routing-loads");
  int64_t step = 0;
  for (const ExpertRecord& record : records) {
    step = record.counts.empty() ? step : std::max(step, record.step);
  }
  std::vector<double> busiest;
  for (const ExpertRecord& record : records) {
    if (record.counts.empty() || record.step != step) {
      continue;
    }
    if (std::ssize(record.counts) != run.model.experts) {
      throw_config_error("--routing-loads {}: has the rows of {} experts, and model.experts = {}",
                         quote(source), record.counts.size(), run.model.experts);
    }
    busiest.push_back(busiest_rank({record.counts.begin(), record.counts.end()},
                                   run.mesh.sizes().expert, run.model.router.expert_capacity));
  }
  if (busiest.empty()) {
    throw_config_error(
        "--routing-loads {}: no record has the rows of each expert; set "
        "moe.watch_counts in that run",
        quote(source));
  }
  return loads_from(fmt::format("step {} of {}", step, source), busiest);
}

}  // namespace braid
