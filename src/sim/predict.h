#pragma once

#include <array>
#include <cstdint>

#include "ir/program.h"
#include "sim/cost_model.h"
#include "sim/op_family.h"
#include "sim/price_changes.h"

namespace braid {

/// The tasks of a program run one after the other, as on one stream: sums of their durations at the
/// clock of such a step (sim/step_clock.h), each at most kMaxCostNs.
struct SerialPrediction {
  std::array<int64_t, kNumOpFamilies> family_ns{};   ///< by OpFamily
  std::array<int64_t, kNumCostSources> source_ns{};  ///< by CostSource: the source of the sums
  int64_t step_overhead_ns = 0;                      ///< host time

  int64_t compute_ns() const;
  int64_t communication_ns() const;
  /// Compute, communication with nothing hidden, and host time.
  int64_t step_ns() const;
};

/// `routed_load`: that of RoutedRows. Of `changes`, those of single ranks and nodes do not count.
/// Throws InternalError as `program_task_cost`.
SerialPrediction predict_serial(const Program& program, const CostModel& model,
                                double routed_load = 1.0, const PriceChanges& changes = {});

}  // namespace braid
