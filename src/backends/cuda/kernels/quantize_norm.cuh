#pragma once

#include "backends/cuda/kernels/norm.cuh"
#include "backends/cuda/kernels/quantize_launch.cuh"

namespace braid::quantize_tile {

/// Of the copies of a norm's result, which is not stored. Throws InternalError for rows that are
/// too long for the norm's kernel, and for squares.
QuantizeLaunch quantize_norm_launch(const OpSpec& spec, const NormForm& form);

}  // namespace braid::quantize_tile
