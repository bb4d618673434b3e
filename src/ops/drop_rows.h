#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ops/expert_rows.h"
#include "ops/graph.h"
#include "ops/op.h"
#include "ops/tally.h"

namespace braid {

/// drop_rows: weights f32 [T,K], row_of i32 [T,K], pair_of i32 [R], offsets i32 [E+1] ->
/// kept_row_of i32 [T,K], kept_pair_of i32 [R], kept_offsets i32 [E+1], tally i64 [5] with `watch`.
///
/// Of the rows of sort_rows (expert_rows.h), which the first maps describe, each expert keeps
/// `capacity` at most: those with the largest weights, and of equal ones the first; or, by
/// position, the first. Kept rows are in the order of their pairs, as before. The rows from
/// kept_offsets[E] on are those of dropped pairs, in the order that they had, and the new maps are
/// each other's inverse. NaN is the largest weight, so that it shows in the results.
///
/// The tally is a RoomTally (expert_exchange.h) of experts: all rows and dropped ones, the most of
/// an expert at once, the capacity, and R / E, rounded down, but 1 at least. Source: Lepikhin et
/// al., GShard, 2020; as Megatron-LM's moe_expert_capacity_factor.
struct DropRowsAttributes {
  int64_t capacity = 1;
  bool by_position = false;
  WatchAttribute watch = {};
  void fields(auto&& visit) {
    visit("capacity", capacity);
    visit("by_position", by_position);
    visit.optional(watch);
  }
};

extern const OpDefinition kDropRowsOp;

struct DropOptions {
  int64_t capacity = 1;
  bool by_position = false;
  /// i64 [RoomTally::kSize], a value of kind kTally; nothing: rows are not counted.
  std::optional<ValueId> tally = {};
};

/// The rows that experts keep; `counts` are those of all. weights: [T,K].
ExpertRows drop_rows(GraphBuilder& builder, ValueId weights, const ExpertRows& rows,
                     const DropOptions& options, std::string_view site);

}  // namespace braid
