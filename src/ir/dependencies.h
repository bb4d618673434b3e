#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"

namespace braid {

/// For every task the earlier tasks that it must follow: RAW, WAR and WAW on overlapping ranges, in
/// program order, streams and events not looked at. Transitively implied ones through the last
/// writer are left out: a read depends on the last writers of its range, a write on the last
/// writers and on the reads since. Compressed rows, ascending task ids.
struct DependencyGraph {
  std::vector<uint32_t> row_begin;  ///< [num_tasks + 1]
  std::vector<TaskId> predecessors;

  std::span<const TaskId> of(TaskId task) const {
    return {predecessors.data() + row_begin[task.index()],
            predecessors.data() + row_begin[task.index() + 1]};
  }
};

/// Near-linear in the number of operands.
DependencyGraph build_dependencies(const Program& program);

}  // namespace braid
