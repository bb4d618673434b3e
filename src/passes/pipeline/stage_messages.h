#pragma once

#include <cstdint>

#include "ir/program.h"

namespace braid {

/// A `send` or `recv` in a group of kind pipeline: what a stage passes to another one.
bool is_stage_message(const Program& program, const Task& task);

/// Of the feed-forward of a layer, not of its attention: a part of its site's name is that of a
/// feed-forward block.
bool is_feed_forward(const Program& program, const Task& task);

/// A microbatch in a virtual stage, for use as a key; of labels that have both.
inline uint64_t microbatch_key(const Label& label) {
  return uint64_t{static_cast<uint32_t>(label.microbatch)} << 32 |
         static_cast<uint32_t>(label.virtual_stage);
}

}  // namespace braid
