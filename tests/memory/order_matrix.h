#pragma once

#include <algorithm>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Happens-before between all pairs of tasks of a small program, by transitive closure: the
/// definition, to compare clever code with.
class OrderMatrix {
 public:
  explicit OrderMatrix(const Program& program)
      : num_tasks_(program.tasks.size()), users_(program.buffers.size()) {
    before_.assign(num_tasks_, std::vector<bool>(num_tasks_, false));
    for (size_t task = 0; task < num_tasks_; ++task) {
      for (size_t other = 0; other < task; ++other) {
        if (is_direct(program, other, task)) {
          before_[other][task] = true;
          for (size_t earlier = 0; earlier < other; ++earlier) {
            before_[earlier][task] = before_[earlier][task] || before_[earlier][other];
          }
        }
      }
      for (const BufferRange& range : program.operands_of(program.tasks[task])) {
        if (range.begin != range.end) {
          users_[range.buffer.index()].push_back(task);
        }
      }
    }
  }

  bool interfere(size_t a, size_t b) const { return !all_before(a, b) && !all_before(b, a); }

  /// No two step buffers that interfere share bytes of one memory. `offsets` is by BufferId.
  bool is_conflict_free(const Program& program, const std::vector<int64_t>& offsets) const {
    for (size_t a = 0; a < program.buffers.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        const Buffer& one = program.buffers[a];
        const Buffer& other = program.buffers[b];
        if (one.lifetime == Lifetime::kStep && other.lifetime == Lifetime::kStep &&
            (one.placement == Placement::kHost) == (other.placement == Placement::kHost) &&
            offsets[a] < offsets[b] + other.size_bytes() &&
            offsets[b] < offsets[a] + one.size_bytes() && interfere(a, b)) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  static bool is_direct(const Program& program, size_t earlier, size_t later) {
    const Task& from = program.tasks[earlier];
    const Task& to = program.tasks[later];
    const auto waits = program.waits_of(to);
    return from.stream == to.stream ||
           (from.record.valid() &&
            std::find(waits.begin(), waits.end(), from.record) != waits.end());
  }

  bool all_before(size_t a, size_t b) const {
    return std::all_of(users_[a].begin(), users_[a].end(), [&](size_t task) {
      return std::all_of(users_[b].begin(), users_[b].end(),
                         [&](size_t later) { return before_[task][later]; });
    });
  }

  size_t num_tasks_;
  std::vector<std::vector<bool>> before_;
  std::vector<std::vector<size_t>> users_;  // tasks by buffer
};

}  // namespace braid
