#pragma once

#include <cstdint>

#include "ir/program.h"

namespace braid {

/// True for a `send` or `recv` in a group of kind pipeline: a message between stages.
bool is_stage_message(const Program& program, const Task& task);

/// True if the task belongs to a layer's feed-forward, not to its attention: a part of its site's
/// name is the name of a feed-forward block.
bool is_feed_forward(const Program& program, const Task& task);

/// A key for a microbatch in a virtual stage. Requires: the label has both.
inline uint64_t microbatch_key(const Label& label) {
  return uint64_t{static_cast<uint32_t>(label.microbatch)} << 32 |
         static_cast<uint32_t>(label.virtual_stage);
}

}  // namespace braid
