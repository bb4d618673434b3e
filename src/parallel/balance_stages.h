#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/schedule.h"

namespace braid {

/// Cost of a part of a model for one microbatch, in any time unit: forward, dgrad (with
/// recomputation) and wgrad. `activations` is what the part keeps from the forward to the backward,
/// in any memory unit.
struct PartCost {
  int64_t forward = 0;
  int64_t dgrad = 0;
  int64_t wgrad = 0;
  int64_t activations = 0;  ///< ignored for embedding and head

  friend bool operator==(const PartCost&, const PartCost&) = default;
};

/// Costs of all parts of a model. By default all layers cost the same, and embedding and head cost
/// nothing.
struct PartCosts {
  std::vector<PartCost> kinds{{.forward = 1, .dgrad = 1, .wgrad = 1, .activations = 1}};
  std::vector<size_t> kind_of_layer;  ///< by layer; empty: all layers are of the first kind
  PartCost embedding;
  PartCost head;  ///< includes the loss

  const PartCost& layer(size_t index) const {
    return kinds[kind_of_layer.empty() ? 0 : kind_of_layer[index]];
  }
};

enum class BalanceEffort : uint8_t {
  kSearch,
  kRough,  ///< return the best start layout of the search; used to estimate many pipelines
};

/// Distributes layers over the stages so that the jobs of `schedule` finish as early as possible.
/// Returns the number of layers per stage, in model order. The embedding precedes the first layer
/// and the head follows the last. Only the first and the last stage may have no layer. The
/// objective also includes memory; of two layouts the one with the smaller value wins:
///     end of the last job / that of an even layout
///     + 1/20 * activations of the rank that holds most / those of an even layout
/// With 1f1b, early ranks hold activations of more microbatches. Ties go to the more even layout.
///
/// Method: local search. Ranks of an interleaved schedule run the stages of one round at the same
/// time and wait for the slowest. The search therefore starts from layouts in which all stages of a
/// round are equal. It moves single layers, as long as that improves the result, from stages with
/// more jobs on a critical path to stages with fewer. If layers differ, one more start layout
/// divides their cost instead of their number, and a move shifts the layers between the two stages.
/// The result is close to the best layout, but not always the best. Jobs are those of
/// `balancing_schedule`, and messages take no time, so the result does not depend on a device.
///
/// Deterministic on every machine: uses integers and no clock. Takes some ms for tens of stages and
/// less than 0.2 s for a hundred; BalanceEffort::kRough takes a tenth of that. Requires: `schedule`
/// is valid (check_schedule), costs are 0 to 2^20, and `layers` is at least 1 and at least
/// num_stages() - 2. `costs` are of `layers` layers.
std::vector<int64_t> balanced_layers(const ScheduleOptions& schedule, int64_t layers,
                                     const PartCosts& costs,
                                     BalanceEffort effort = BalanceEffort::kSearch);

/// The shortened schedule that `balanced_layers` times. Schedules with equal results get equal
/// layouts. It has at most four groups of microbatches and the remainder of a group, because each
/// further group takes as long as the one before once all ranks are busy. Groups of more than 4 P
/// microbatches are cut to 4 P (P ranks) if the step has more than 16 P. There are no pairs, so
/// overlap does not affect the layout.
ScheduleOptions balancing_schedule(ScheduleOptions schedule);

}  // namespace braid
