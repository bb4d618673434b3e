#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// A factor of the products at one place of the model, as docs/numerics.md counts what FP8 loses.
struct Fp8Place {
  std::string site;    ///< "layers.0.attention.qkv"
  std::string factor;  ///< "x", "w" or "dy"
};

/// Whose tallies a training step has in its buffer "fp8_watch", in their order; empty if it has
/// none. A tally that no task of this rank adds to has an empty site.
std::vector<Fp8Place> watched_places(const Program& program);

}  // namespace braid
