#include "sim/predict.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "ops/routed_rows.h"

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
  SerialPrediction prediction;
  prediction.step_overhead_ns = model.step_overhead_ns();
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
    add(prediction.family_ns[static_cast<size_t>(price->family)], price->cost.ns);
    add(prediction.source_ns[static_cast<size_t>(price->cost.source)], price->cost.ns);
  }
  return prediction;
}

}  // namespace braid
