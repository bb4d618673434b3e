#pragma once

#include <cstdint>
#include <span>

#include "passes/tensor/dependent_products.h"

namespace braid {

/// Whether the pair can be cut by the method in its `overlap`, into pieces of at least `min_rows`
/// rows (ring, and chunks of rows) or features (chunks of features).
bool can_split(const Program& program, const DependentProduct& pair, int64_t min_rows);

/// The program with these pairs cut as ring_exchange.h shows. Requires: all pairs pass `can_split`
/// and are in program order of their products. Pieces of the product run on the product's stream;
/// calls, and the copy of the own block, on the call's stream. Drops events.
Program split_products(const Program& program, std::span<const DependentProduct> pairs);

}  // namespace braid
