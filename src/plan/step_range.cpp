#include "plan/step_range.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/parallel_for.h"
#include "base/philox.h"
#include "base/text.h"
#include "sim/price_changes.h"

namespace braid {
namespace {

double as_double(int64_t value) {
  return static_cast<double>(value);
}

int64_t rounded(double ns) {
  return round_cost_ns(ns);
}

/// The step may be this much shorter or longer for a reason, as other prices say.
struct Change {
  std::string_view what;
  PriceChanges low;
  PriceChanges high;
};

/// A relative error of `part`: as much shorter as longer, in ratio.
template <class Make>
Change error_of(std::string_view what, double part, const Make& make) {
  return {.what = what, .low = make(1 / (1 + part)), .high = make(1 + part)};
}

PriceChanges node_links(double factor) {
  PriceChanges changes;
  changes.node_links = factor;
  return changes;
}

PriceChanges network_links(double factor) {
  PriceChanges changes;
  changes.network_links = factor;
  return changes;
}

PriceChanges fp8_products(double factor) {
  PriceChanges changes;
  changes.fp8_products = factor;
  return changes;
}

int num_nodes(const RunSpec& run, const CostModel& model) {
  const int per_node = model.cluster().devices_per_node;
  return (run.mesh.num_ranks() + per_node - 1) / per_node;
}

/// Mean growth of the time of communication between the nodes of the run.
double mean_congestion(const RunSpec& run, const CostModel& model) {
  return model.cluster().device.range.congestion * std::log2(as_double(num_nodes(run, model)));
}

std::vector<Change> changes_of(const RunSpec& run, const CostModel& model) {
  const DeviceSpec& device = model.cluster().device;
  const int num_ranks = run.mesh.num_ranks();
  std::vector<Change> changes{error_of("kernels",
                                       std::hypot(device.stack.kernels_range, device.range.kernels),
                                       PriceChanges::compute)};
  if (run.fp8) {
    changes.push_back(error_of("FP8 products", device.stack.fp8_range, fp8_products));
  }
  if (num_ranks > 1) {
    changes.push_back(error_of("links inside nodes", device.range.node_links, node_links));
    changes.push_back(
        {.what = "slowest device",
         .low = {},
         .high = PriceChanges::compute(1 + device.range.device_sd * mean_of_largest(num_ranks))});
  }
  if (num_nodes(run, model) > 1) {
    changes.push_back(error_of("links between nodes", device.range.network_links, network_links));
    changes.push_back(
        {.what = "congestion", .low = {}, .high = network_links(1 + mean_congestion(run, model))});
  }
  return changes;
}

/// Combines independent sources.
StepRange range_of(int64_t middle_ns, std::vector<RangeSource> sources) {
  double below = 0;
  double above = 0;
  for (RangeSource& source : sources) {
    source.low_ns = std::min(source.low_ns, middle_ns);
    source.high_ns = std::max(source.high_ns, middle_ns);
    below = std::hypot(below, as_double(middle_ns - source.low_ns));
    above = std::hypot(above, as_double(source.high_ns - middle_ns));
  }
  std::ranges::stable_sort(sources, std::greater<>(), [](const RangeSource& source) {
    return source.high_ns - source.low_ns;
  });
  return {.low_ns = rounded(as_double(middle_ns) - below),
          .middle_ns = middle_ns,
          .high_ns = rounded(as_double(middle_ns) + above),
          .sources = std::move(sources)};
}

/// The factor of the slowest of `count` devices, drawn by a uniform variate.
double slowest_of(int64_t count, double sd, double uniform) {
  constexpr double kBelowOne = 1 - std::numeric_limits<double>::epsilon() / 2;
  const double rank_of_largest = std::min(std::pow(uniform, 1 / as_double(count)), kBelowOne);
  return std::max(0.5, 1 + sd * normal_quantile(rank_of_largest));
}

/// One machine at one time.
class Draw {
 public:
  Draw(const SimulatedRun& run, uint64_t seed, int64_t number)
      : run_(run),
        range_(run.model().cluster().device.range),
        seed_(seed),
        first_(static_cast<uint64_t>(number) * (run.spec().mesh.sizes().pipeline + kOthers)) {}

  int64_t step_ns() const {
    PriceChanges changes;
    changes.rank_compute = rank_compute();
    changes.network_links = 1 - std::log(uniform(0)) * mean_congestion(run_.spec(), run_.model());
    const double jitter = 1 + range_.step_sd * normal_quantile(uniform(1));
    return rounded(as_double(run_.step_ns_with(changes)) * std::max(jitter, 0.5));
  }

 private:
  static constexpr uint64_t kOthers = 2;  // variates of a draw besides those of stages

  double uniform(uint64_t index) const { return philox_uniform(seed_, first_ + index); }

  std::vector<double> rank_compute() const {
    const Mesh& mesh = run_.spec().mesh;
    const int64_t ranks_of_stage = mesh.num_ranks() / mesh.sizes().pipeline;
    std::vector<double> factors;
    for (int stage = 0; stage < mesh.sizes().pipeline; ++stage) {
      factors.push_back(slowest_of(ranks_of_stage, range_.device_sd,
                                   uniform(kOthers + static_cast<uint64_t>(stage))));
    }
    std::vector<double> by_rank;
    for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
      by_rank.push_back(factors[static_cast<size_t>(mesh.position(rank).pipeline)]);
    }
    return by_rank;
  }

  const SimulatedRun& run_;
  const RangeSpec& range_;
  uint64_t seed_;
  uint64_t first_;
};

std::string percent_text(int64_t ns, int64_t middle_ns) {
  return fmt::format("{:+.1f}%", 100.0 * (as_double(ns) / as_double(middle_ns) - 1));
}

}  // namespace

double StepRange::width() const {
  return as_double(high_ns) / as_double(low_ns) - 1;
}

double normal_quantile(double probability) {
  check(probability > 0 && probability < 1, "a probability of {}", probability);
  constexpr double kTail = 0.02425;
  const auto tail = [](double p) {
    const double q = std::sqrt(-2 * std::log(p));
    return (((((-7.784894002430293e-03 * q - 3.223964580411365e-01) * q - 2.400758277161838) * q -
              2.549732539343734) *
                 q +
             4.374664141464968) *
                q +
            2.938163982698783) /
           ((((7.784695709041462e-03 * q + 3.224671290700398e-01) * q + 2.445134137142996) * q +
             3.754408661907416) *
                q +
            1);
  };
  if (probability < kTail) {
    return tail(probability);
  }
  if (probability > 1 - kTail) {
    return -tail(1 - probability);
  }
  const double q = probability - 0.5;
  const double r = q * q;
  return (((((-3.969683028665376e+01 * r + 2.209460984245205e+02) * r - 2.759285104469687e+02) * r +
            1.383577518672690e+02) *
               r -
           3.066479806614716e+01) *
              r +
          2.506628277459239) *
         q /
         (((((-5.447609879822406e+01 * r + 1.615858368580409e+02) * r - 1.556989798598866e+02) * r +
            6.680131188771972e+01) *
               r -
           1.328068155288572e+01) *
              r +
          1);
}

double mean_of_largest(int64_t count) {
  constexpr double kBlom = 0.375;
  return count < 2 ? 0.0 : normal_quantile((as_double(count) - kBlom) / (as_double(count) + 0.25));
}

StepRange step_range(const SimulatedRun& run, int num_threads) {
  return step_range(
      run.spec(), run.model(),
      [&](const PriceChanges& changes) { return run.step_ns_with(changes); }, num_threads);
}

StepRange step_range(const RunSpec& run, const CostModel& model, const StepTimer& step_ns,
                     int num_threads) {
  const std::vector<Change> changes = changes_of(run, model);
  std::vector<RangeSource> sources(changes.size());
  int64_t middle_ns = 0;
  parallel_for(2 * changes.size() + 1, num_threads, [&](size_t index) {
    if (index == 2 * changes.size()) {
      middle_ns = step_ns({});
      return;
    }
    const Change& change = changes[index / 2];
    RangeSource& source = sources[index / 2];
    if (index % 2 == 0) {
      source.low_ns = step_ns(change.low);
    } else {
      source.high_ns = step_ns(change.high);
    }
  });
  for (size_t i = 0; i < changes.size(); ++i) {
    sources[i].what = changes[i].what;
  }
  const double sd_ns = model.cluster().device.range.step_sd * as_double(middle_ns);
  sources.push_back({.what = "jitter",
                     .low_ns = rounded(as_double(middle_ns) - sd_ns),
                     .high_ns = rounded(as_double(middle_ns) + sd_ns)});
  return range_of(middle_ns, std::move(sources));
}

std::string describe_range(const StepRange& range) {
  std::vector<std::string> parts;
  for (const RangeSource& source : range.sources) {
    const std::string low = percent_text(source.low_ns, range.middle_ns);
    const std::string high = percent_text(source.high_ns, range.middle_ns);
    if (source.high_ns - source.low_ns >= range.middle_ns / 1000) {
      parts.push_back(fmt::format("{} {}{}", source.what,
                                  source.low_ns == range.middle_ns ? "" : low + " ", high));
    }
  }
  return fmt::format(
      "{} to {} ({} {}){}{}", format_duration(as_double(range.low_ns) * 1e-9),
      format_duration(as_double(range.high_ns) * 1e-9), percent_text(range.low_ns, range.middle_ns),
      percent_text(range.high_ns, range.middle_ns), parts.empty() ? "" : ": ", join(parts, ", "));
}

int64_t step_ns_with(const SimulatedRun& run, const SlowParts& slow) {
  const Cluster& cluster = run.model().cluster();
  const int num_ranks = run.spec().mesh.num_ranks();
  const int slow_node = run.busiest().rank / cluster.devices_per_node;
  PriceChanges changes;
  changes.rank_compute.assign(static_cast<size_t>(num_ranks), kSamePrice);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (rank / cluster.devices_per_node == slow_node) {
      changes.rank_compute[static_cast<size_t>(rank)] = slow.node;
    }
  }
  if (const int nodes = num_nodes(run.spec(), run.model()); nodes > 1) {
    changes.node_network.assign(static_cast<size_t>(nodes), kSamePrice);
    changes.node_network[static_cast<size_t>(slow_node)] = slow.link;
  } else {
    changes.node_links = slow.link;
  }
  return run.step_ns_with(changes);
}

SampledSteps sample_steps(const SimulatedRun& run, int64_t count, uint64_t seed, int num_threads) {
  check(count > 0, "{} samples", count);
  std::vector<int64_t> steps(static_cast<size_t>(count));
  parallel_for(steps.size(), num_threads, [&](size_t index) {
    steps[index] = Draw(run, seed, static_cast<int64_t>(index)).step_ns();
  });
  std::ranges::sort(steps);
  const auto at = [&](double part) {  // nearest rank
    return steps[static_cast<size_t>(std::ceil(part * as_double(count))) - 1];
  };
  return {.count = count, .seed = seed, .median_ns = at(0.5), .p90_ns = at(0.9)};
}

}  // namespace braid
