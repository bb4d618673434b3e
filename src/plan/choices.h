#pragma once

#include "config/choices.h"
#include "parallel/parallel_options.h"

namespace braid {

// Names of the run file for types that src/config does not see.

template <>
inline constexpr auto kChoices<ShardKind> =
    Choices<ShardKind, 4>{{{"none", ShardKind::kNone},
                           {"optimizer", ShardKind::kOptimizer},
                           {"gradients", ShardKind::kGradients},
                           {"parameters", ShardKind::kParameters}}};

template <>
inline constexpr auto kChoices<BucketKind> =
    Choices<BucketKind, 3>{{{"layer", BucketKind::kLayer},
                            {"virtual_stage", BucketKind::kVirtualStage},
                            {"bytes", BucketKind::kBytes}}};

}  // namespace braid
