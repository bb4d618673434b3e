#pragma once

#include "config/run_config.h"

namespace braid {

/// Refuses keys of section [overlap] that would do nothing or contradict each other, here or beside
/// section [parallel]: every key works with every other, or the message says why not; and a
/// runtime.ranks_per_gpu that does not go with them. Throws
/// ConfigError naming option, value and the nearest valid setting.
void validate_overlap(const RunConfig& config);

}  // namespace braid
