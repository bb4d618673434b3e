#pragma once

#include <string_view>
#include <vector>

#include "config/tensor_sites.h"
#include "passes/overlap_axis.h"

namespace braid {

/// The axes that a search may try for products of tensor ranks: methods for all products together,
/// and for each one. Includes methods that cut products only if overlap.may_change_rounding is set.
std::vector<OverlapAxis> tensor_axes(const RunConfig& config, const AxisLimits& limits);

/// Turns on rings before products, and rings after products of the forward. In the backward, sums
/// run under weight gradients. Requires sequence parallelism.
void use_rings(OverlapConfig& overlap);

/// Keeps products of the forward whole.
void keep_forward_whole(OverlapConfig& overlap);

}  // namespace braid
