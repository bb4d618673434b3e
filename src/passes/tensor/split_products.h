#pragma once

#include <cstdint>
#include <span>

#include "passes/tensor/dependent_products.h"

namespace braid {

/// Whether the pair can be cut as its `overlap` says, in pieces of at least `min_rows` rows (ring,
/// and chunks of rows) or features (chunks of features).
bool can_split(const Program& program, const DependentProduct& pair, int64_t min_rows);

/// The program with these pairs cut up, as ring_exchange.h shows. All must pass `can_split`;
/// in program order of their products. Pieces of the product are on its stream, calls and the copy
/// of the own block on that of the call. Events are dropped.
Program split_products(const Program& program, std::span<const DependentProduct> pairs);

}  // namespace braid
