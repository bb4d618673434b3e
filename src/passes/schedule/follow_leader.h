#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/program.h"
#include "passes/streams/comm_engine.h"

namespace braid {

/// For each task of `follower` the task of `leader` that does the same part of the step on its
/// rank: the one with equal op, label and last buffer that is as many-th among those. nullopt:
/// there is none, as for the squared norms and updates of a rank that owns parts of more tensors.
/// O(n log n).
std::vector<std::optional<TaskId>> same_tasks(const Program& leader, const Program& follower);

/// The order of the tasks of `follower`, given the order of those of `leader`. A task that `leader`
/// does not have runs as soon as what it depends on has run. A task that depends on a later one in
/// this order waits for it, and so do the calls behind it, since other ranks make them in the
/// leader's order. Throws InternalError if dependencies do not allow that. O((n + dependencies) log
/// n).
std::vector<TaskId> follow_order(const Program& leader, std::span<const TaskId> order,
                                 const Program& follower);

/// The engines of the tasks of `follower`, given those of `leader`. Tasks that `leader` does not
/// have keep theirs.
std::vector<TaskEngine> follow_engines(const Program& leader, std::span<const TaskEngine> engines,
                                       const Program& follower);

}  // namespace braid
