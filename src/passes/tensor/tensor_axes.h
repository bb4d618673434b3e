#pragma once

#include <string_view>
#include <vector>

#include "config/tensor_sites.h"
#include "passes/overlap_axis.h"

namespace braid {

/// What a search may try for products of tensor ranks: methods of all of them together, and of each
/// by itself. Those that cut products only if overlap.may_change_rounding.
std::vector<OverlapAxis> tensor_axes(const RunConfig& config, const AxisLimits& limits);

/// Turns on rings in front of products and behind those of the forward; the backward's sums run
/// under weight gradients. Requires sequence parallelism.
void use_rings(OverlapConfig& overlap);

/// Leaves products of the forward whole.
void keep_forward_whole(OverlapConfig& overlap);

}  // namespace braid
