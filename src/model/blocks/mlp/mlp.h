#pragma once

#include <cstdint>

#include "model/model_spec.h"

namespace braid {

/// ModelSpec::ffn where nothing says it: 4 width for GELU; 8/3 width, rounded up to a multiple of
/// 64, for SwiGLU, which has a third matrix.
int64_t default_ffn(const ModelSpec& spec);

}  // namespace braid
