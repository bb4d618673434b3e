#pragma once

#include "config/run_config.h"

namespace braid {

/// Section [overlap] with its effective values. If mode = "auto", which ignores the keys of mode =
/// "manual" and uses the defaults of all passes, each key gets the value that makes mode = "manual"
/// do the same. Otherwise the keys are unchanged. mode itself stays. `config` should be resolved.
OverlapConfig overlap_in_force(const RunConfig& config);

}  // namespace braid
