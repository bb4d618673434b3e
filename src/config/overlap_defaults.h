#pragma once

#include "config/run_config.h"

namespace braid {

/// Section [overlap] with what is in force: where mode = "auto", which reads none of the keys of
/// mode = "manual" and takes the defaults of all passes, each key that makes mode = "manual" do the
/// same as they do; else as it is. mode itself stays. `config` should be resolved.
OverlapConfig overlap_in_force(const RunConfig& config);

}  // namespace braid
