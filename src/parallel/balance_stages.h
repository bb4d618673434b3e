#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/schedule.h"

namespace braid {

/// What a part of a model costs for one microbatch, in any unit: forward, gradient of the input
/// (and what is made again for it), gradient of the weights; and what it keeps from the forward to
/// the backward, in a unit of its own.
struct PartCost {
  int64_t forward = 0;
  int64_t dgrad = 0;
  int64_t wgrad = 0;
  int64_t activations = 0;  ///< not read of embedding and head

  friend bool operator==(const PartCost&, const PartCost&) = default;
};

/// Of the parts that stages are made of. The defaults balance layers alone, all of which are alike.
struct PartCosts {
  std::vector<PartCost> kinds{{.forward = 1, .dgrad = 1, .wgrad = 1, .activations = 1}};
  std::vector<size_t> kind_of_layer;  ///< by layer; empty: all are of the first kind
  PartCost embedding;
  PartCost head;  ///< and loss

  const PartCost& layer(size_t index) const {
    return kinds[kind_of_layer.empty() ? 0 : kind_of_layer[index]];
  }
};

enum class BalanceEffort : uint8_t {
  kSearch,
  kRough,  ///< the best of the layouts that the search starts from: to estimate many pipelines
};

/// How many layers each stage gets, in the order of the model, so that the jobs of `schedule` end
/// soonest: embedding in front of the first, head behind the last. Every stage has a layer but the
/// first and the last, which may have embedding or head alone. Memory counts a little: of two
/// layouts the one with less of
///   end of the last job / that of an even layout
///     + 1/20 * activations of the rank that holds most / those of an even layout
/// is better (early ranks of 1f1b hold those of more microbatches), then the more even one.
///
/// A local search: from layouts in which the stages of a round over the ranks are alike, because in
/// an interleaved schedule ranks do stages of one round at the same time and wait for the slowest,
/// layers move one by one while that gains, from stages with more jobs on a longest chain of jobs
/// to stages with fewer. Where layers differ, another start shares out their costs instead of their
/// number, and what lies between two stages moves along. Not always the best, but close. Jobs are
/// those of `balancing_schedule`, and messages take no time: the result depends on no device.
///
/// The same result everywhere: integers, no clock. Takes some ms for tens of stages, below 0.2 s
/// for a hundred; with BalanceEffort::kRough a tenth of that. `schedule` is valid (check_schedule),
/// costs are 0 to 2^20 and of `layers` layers, num_stages() - 2 and 1 at least.
std::vector<int64_t> balanced_layers(const ScheduleOptions& schedule, int64_t layers,
                                     const PartCosts& costs,
                                     BalanceEffort effort = BalanceEffort::kSearch);

/// What `balanced_layers` runs of a schedule; of schedules for which it is the same, layouts are
/// the same. Four groups of microbatches and what is left over of a group: once all ranks are busy,
/// each further group takes as long as the one before. Groups of no more than four times the ranks.
/// Without pairs, so that overlap makes no difference.
ScheduleOptions balancing_schedule(ScheduleOptions schedule);

}  // namespace braid
