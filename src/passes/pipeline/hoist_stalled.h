#pragma once

#include <cstdint>

#include "ir/program.h"

namespace braid {

struct HoistedTasks {
  Program program;
  int64_t num_moved = 0;
};

/// Finds forwards that are woven into a backward that waits for a message. Moves the first part of
/// the forward in front of the task that reads the message, because it does not depend on the
/// message. The first part ends at the forward's first communication, first feed-forward or second
/// layer. A forward that begins before the wait does not change. See p2p_streams.h.
HoistedTasks hoist_stalled(Program program);

}  // namespace braid
