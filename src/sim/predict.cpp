#include "sim/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "ops/routed_rows.h"
#include "sim/step_clock.h"

namespace braid {
namespace {

void add(int64_t& sum_ns, int64_t ns) {
  sum_ns = std::min(sum_ns + ns, kMaxCostNs);
}

Cost cost_in(const Program& program, const OpSpec& spec, const CostModel& model,
             const PriceChanges& changes) {
  Cost cost;
  double factor = kSamePrice;
  if (comm_kind_of(spec)) {
    const Group& group = program.groups[group_of(program, spec).value().index()];
    const ProgramComm comm = comm_of(model, spec, program.rank, group);
    cost = comm.cost;
    factor = comm_change(changes, group.kind, comm.spec.placement);
  } else {
    cost = model.task_cost(spec);
    factor = compute_change(changes, spec, family_of(spec));
  }
  if (factor != kSamePrice) {
    cost.ns = round_cost_ns(static_cast<double>(cost.ns) * factor);
  }
  return cost;
}

/// Sums of times of kernels alone, by family and source.
using TimesAlone = std::array<std::array<int64_t, kNumCostSources>, kNumOpFamilies>;

double sum_of(const TimesAlone& alone, OpFamily family) {
  const auto& of_family = alone[static_cast<size_t>(family)];
  return static_cast<double>(std::accumulate(of_family.begin(), of_family.end(), int64_t{0}));
}

/// At the clock of a step in which nothing overlaps.
SerialPrediction at_clock(const CostModel& model, const TimesAlone& alone) {
  const DeviceSpec& device = model.cluster().device;
  const double clock = step_clock(device, {.products = sum_of(alone, OpFamily::kGemm),
                                           .attention = sum_of(alone, OpFamily::kAttention),
                                           .memory_bound = sum_of(alone, OpFamily::kMemoryBound),
                                           .waiting = sum_of(alone, OpFamily::kCommunication)});
  SerialPrediction prediction;
  prediction.step_overhead_ns = model.step_overhead_ns();
  for (size_t family = 0; family < kNumOpFamilies; ++family) {
    const double factor =
        device.most_clock > 1 ? clock_change(static_cast<OpFamily>(family), clock) : kSamePrice;
    for (size_t source = 0; source < kNumCostSources; ++source) {
      const int64_t ns = std::llround(static_cast<double>(alone[family][source]) * factor);
      add(prediction.family_ns[family], ns);
      add(prediction.source_ns[source], ns);
    }
  }
  return prediction;
}

}  // namespace

int64_t SerialPrediction::compute_ns() const {
  return std::accumulate(family_ns.begin(), family_ns.end(), int64_t{0}) - communication_ns();
}

int64_t SerialPrediction::communication_ns() const {
  return family_ns[static_cast<size_t>(OpFamily::kCommunication)];
}

int64_t SerialPrediction::step_ns() const {
  return compute_ns() + communication_ns() + step_overhead_ns;
}

SerialPrediction predict_serial(const Program& program, const CostModel& model, double routed_load,
                                const PriceChanges& changes) {
  const RoutedRows rows(program, routed_load);
  TimesAlone alone{};
  struct Known {
    Cost cost;
    OpFamily family;
  };
  std::vector<std::optional<Known>> known(program.specs.size());  // few specs, perhaps a million
                                                                  // tasks
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const SpecId spec = program.tasks[i].spec;
    std::optional<Known>& price = known.at(spec.index());
    if (!price) {
      price = {cost_in(program, rows.priced(program.specs[spec]), model, changes),
               family_of(program.specs[spec])};
    }
    add(alone[static_cast<size_t>(price->family)][static_cast<size_t>(price->cost.source)],
        price->cost.ns);
  }
  return at_clock(model, alone);
}

}  // namespace braid
