#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost_model.h"
#include "sim/price_changes.h"
#include "sim/simulate.h"

namespace braid {

/// A task on the critical path of a step. Its time alone is its latency, then the rest of its
/// price; what is left of its time is lost to tasks that run at once.
struct PathTask {
  uint32_t rank = 0;     ///< index into SimResult::ranks: one of several alike ranks
  uint32_t task = 0;     ///< of that rank's program
  int64_t begin_ns = 0;  ///< communication begins with its last rank
  int64_t end_ns = 0;
  int64_t alone_ns = 0;    ///< its price, at most the time that it took
  int64_t latency_ns = 0;  ///< of `alone_ns`: the latency of communication, the launch of compute

  friend bool operator==(const PathTask&, const PathTask&) = default;
};

/// What the step waited for, from its first nanosecond to its last: each task begins at the moment
/// at which the one before it ends, and waited for that. It is found backwards from the last task:
/// a task waited for the task before it on its stream, for one whose event it waits for, or for the
/// task that had its unit of the device; a communication for what its last rank waited for. If
/// several end at that moment, the first of these counts, and the task's own rank before others.
/// Tasks that take no time are left out.
///
/// It needs nothing of a simulation but the times of its tasks. Takes time and memory in proportion
/// to the tasks of the ranks through which the path leads.
///
/// `result`: of a simulation of the programs with these prices. Throws InternalError if nothing
/// explains when a task began, which is a fault of the simulator.
std::vector<PathTask> critical_path(const MatchedPrograms& programs, const CostModel& model,
                                    const SimResult& result, double routed_load = 1.0,
                                    const PriceChanges& changes = {});

}  // namespace braid
