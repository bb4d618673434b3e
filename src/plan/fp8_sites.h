#pragma once

#include <string>
#include <vector>

#include "ops/quantize_products.h"
#include "plan/run_spec.h"

namespace braid {

/// The matrix products of all layers, with the sizes that they have on the first rank, and whether
/// they are done in FP8. Empty unless the run has a recipe.
std::vector<ProductSite> fp8_sites(const RunSpec& run);

/// A table of these, with one line for equal products of several layers; empty unless the run has a
/// recipe. For people.
std::string describe_fp8(const RunSpec& run);

}  // namespace braid
