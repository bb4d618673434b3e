#pragma once

#include "ops/expert_rows.h"
#include "ops/op.h"
#include "ops/tally.h"

namespace braid {

/// quantize_gathered: x [T,C] (f32 or bf16), pair_of i32 [R], row_of i32 [T,K], with `drops`
/// offsets i32 [E+1] -> y f8 [R,C], y_scales f32 [R, C/128], with `watch` tally i64 [4].
///
/// The rows that gather_rows would make (ops/expert_rows.h), rounded to FP8 before they go to other
/// ranks. Elements and scales have the bits that `quantize_grouped` gives a row; but the scales of
/// a row lie together, as they travel. C is a multiple of 128. With `drops`, rows from offsets[E]
/// on are not written; the tally does not count them. With `partial`, the maps are partial
/// (ops/partial_maps.h): rows of no pair are not written, and not counted.
struct QuantizeGatheredAttributes {
  DroppedRows dropped = {};
  PartialMaps partial = {};
  WatchAttribute watch = {};
  void fields(auto&& visit) {
    visit.optional(dropped);
    visit.optional(partial);
    visit.optional(watch);
  }
};

/// Places of the operands, as attributes say; -1: there is none.
struct QuantizeGatheredOperands {
  explicit QuantizeGatheredOperands(const QuantizeGatheredAttributes& attributes);
  int offsets = -1;
  int y = 3;  ///< its scales follow
  int tally = -1;
};

extern const OpDefinition kQuantizeGatheredOp;

}  // namespace braid
