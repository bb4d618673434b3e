#pragma once

#include <cstdint>

#include "ir/program.h"

namespace braid {

struct HoistedTasks {
  Program program;
  int64_t num_moved = 0;
};

/// Where a forward is woven into a backward that waits for a message, moves what the forward does
/// up to its first communication, its first feed-forward or its second layer in front of the task
/// that reads the message: it needs nothing from there, and would be held up by the wait. A forward
/// that begins before the wait stays as it is. See p2p_streams.h.
HoistedTasks hoist_stalled(Program program);

}  // namespace braid
