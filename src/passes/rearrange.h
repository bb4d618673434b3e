#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"

namespace braid {

/// First and last access of each buffer, as positions in program order; kNone: nothing touches it.
/// What `undefine` does counts as an access.
struct BufferUses {
  static constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> first;  ///< by buffer
  std::vector<uint32_t> last;   ///< by buffer
};
BufferUses find_uses(const Program& program);

/// A place at which the memory of a step buffer changes hands: an `undefine` of all of it.
/// In front of the first access of a buffer that another stream will write, memory is given to that
/// stream there, and not at the beginning of the step; behind the last access of one that another
/// stream has read or written, `stream` waits there until that is done and has the memory again.
struct HandOver {
  BufferId buffer;
  uint32_t position = 0;  ///< in the new order: in front of that task; its size: behind the last
  StreamId stream;        ///< the one that gives or takes; mostly that of compute
  Label label;
};

/// The label of a hand-over in front of the task at that position: that of the first task from
/// there on that is no communication, with the site of the task that the memory is for.
Label hand_over_label(const Program& program, uint32_t position, const Task& for_task);

/// The program with its tasks in the order `order` (a permutation of task positions) and with these
/// hand-overs. Several at one place keep their order. Events are dropped. O(operands). Throws
/// InternalError if tasks that conflict would change places, or if a hand-over would stand between
/// two accesses of its buffer.
Program rearrange(const Program& program, std::span<const TaskId> order,
                  std::span<const HandOver> hand_overs);

}  // namespace braid
