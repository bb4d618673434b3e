#pragma once

#include <set>
#include <string>
#include <vector>

#include "ops/quantize_products.h"
#include "plan/run_spec.h"

namespace braid {

/// The matrix products of all layers, with the sizes that they have on the first rank, and whether
/// they are done in FP8. Empty unless the run has a recipe.
std::vector<ProductSite> fp8_sites(const RunSpec& run);

/// The weights of which ranks keep nothing but main weights and FP8 copies: those that only FP8
/// products read. If ranks have shards, they gather the copies (train.fp8_param_gather), and the
/// copy by columns must be the transposed copy by rows. So not with weights in blocks of 1 x 32.
std::set<std::string> fp8_weights(const RunSpec& run);

/// A table of the products, with one line for equal products of several layers; empty unless the
/// run has a recipe. For people.
std::string describe_fp8(const RunSpec& run);

}  // namespace braid
