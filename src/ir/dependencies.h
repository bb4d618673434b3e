#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Lists for every task the earlier tasks that it must follow. A dependency is a RAW, WAR or WAW on
/// overlapping ranges, taken from program order; streams and events are ignored. A dependency that
/// the last writer already implies is omitted: a read depends on the last writers of its range, and
/// a write depends on the last writers and on all reads since then. Stored as compressed sparse
/// rows; task ids ascend within a row.
struct DependencyGraph {
  std::vector<uint32_t> row_begin;  ///< [num_tasks + 1]
  std::vector<TaskId> predecessors;

  std::span<const TaskId> of(TaskId task) const {
    return {predecessors.data() + row_begin[task.index()],
            predecessors.data() + row_begin[task.index() + 1]};
  }
};

/// Runs in near-linear time in the number of operands.
DependencyGraph build_dependencies(const Program& program);

}  // namespace braid
