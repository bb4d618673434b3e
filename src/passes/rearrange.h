#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/dependencies.h"
#include "ir/program.h"

namespace braid {

/// First and last access of each buffer, as positions in program order; kNone if no task accesses
/// it. An `undefine` counts as an access.
struct BufferUses {
  static constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> first;  ///< by buffer
  std::vector<uint32_t> last;   ///< by buffer
};
BufferUses find_uses(const Program& program);

/// A place where the memory of a step buffer passes from one stream to another: an `undefine` of
/// the whole buffer. There are two uses:
///   - Before the first access of a buffer that another stream will write: that stream gets the
///     memory at this place instead of at the beginning of the step.
///   - After the last access of a buffer that another stream has read or written: `stream`
///     waits here until that stream is done, and then owns the memory again.
struct HandOver {
  BufferId buffer;
  uint32_t position = 0;  ///< before the task at this place of the new order; its size: at the end
  StreamId stream;        ///< the stream that gives or takes the memory; usually the compute stream
  Label label;
};

/// The label of a hand-over before the task at that position: the label of the first task from
/// there on that is not communication, with the site of `for_task`, the task that gets the memory.
Label hand_over_label(const Program& program, uint32_t position, const Task& for_task);

/// The program with its tasks in the order `order` (a permutation of task positions) and with these
/// hand-overs. Hand-overs at the same place keep their order. Drops events. O(operands). Throws
/// InternalError if conflicting tasks would change places, or if a hand-over would stand between
/// two accesses of its buffer.
Program rearrange(Program program, std::span<const TaskId> order,
                  std::span<const HandOver> hand_overs);

/// The same for a caller that has the dependencies of the program's tasks.
Program rearrange(Program program, std::span<const TaskId> order,
                  std::span<const HandOver> hand_overs, const DependencyGraph& dependencies);

/// `reorder_tasks` of a program that is no longer needed as it was: it is not copied. The order is
/// not compared with dependencies.
Program with_tasks_in_order(Program program, std::span<const TaskId> order);

}  // namespace braid
