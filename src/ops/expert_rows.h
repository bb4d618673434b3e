#pragma once

#include <optional>

#include "ops/graph.h"
#include "ops/op.h"
#include "ops/partial_maps.h"
#include "ops/tally.h"

namespace braid {

/// Rows in the order of the experts that work on them. T tokens go to K experts each: pair p = t K
/// + j is token t in its slot j. There are R = T K rows, one for each pair: those of expert 0
/// first, those of an expert in the order of their pairs. The number of rows is fixed; how many of
/// them an expert has is data.
///
/// sort_rows: experts i32 [T,K] -> row_of i32 [T,K], pair_of i32 [R], offsets i32 [E+1], counts f32
/// [E], tally i64 [E]. row_of and pair_of are each other's inverse: the row of each pair, the pair
/// of each row. Expert e has the rows [offsets[e], offsets[e+1]), which may be none, and counts[e]
/// is their number, which the tally, if there is one, adds up. An expert outside [0, E) is a
/// DeviceError naming it on the CPU.
///
/// With `room`, the maps are partial (ops/partial_maps.h): R may be any number. A pair may have no
/// expert, which is written as expert E, and rows from R on lack room; if `drops`, their pairs have
/// none. counts are those without a limit, and there is no tally. Attributes:
struct SortRoom {
  bool is_limited = false;
  bool drops = false;
  void fields(auto&& visit) {
    visit("is_limited", is_limited);
    visit("drops", drops);
  }
  friend bool operator==(const SortRoom&, const SortRoom&) = default;
};

struct SortRowsAttributes {
  WatchAttribute watch = {};
  SortRoom room = {};
  void fields(auto&& visit) {
    visit.optional(watch);
    visit.optional(room);
  }
};

/// gather_rows: x [T,C], pair_of i32 [R], row_of i32 [T,K] -> y [R,C]; y[r] = x[pair_of[r] / K].
/// sum_rows: x [R,C], row_of i32 [T,K], pair_of i32 [R] -> y [T,C]; y[t] = sum over j of
/// x[row_of[t,j]], in ascending j, summed in f32 and rounded once. Each is the other's backward; an
/// op reads only the first of its two maps, and hands both to its backward.
///
/// permute_elems: x, order i32, inverse i32, all of N elements -> y of the shape of `order`; y[i] =
/// x[order[i]]. The weights [T,K] of pairs in the order of rows, and back: order and inverse are
/// pair_of and row_of, or the other way round. Its backward is itself with the maps exchanged; it
/// reads `order` only.
///
/// With `drops`, these three have another operand behind the maps, offsets i32 [E+1]: the rows from
/// offsets[E] on are of pairs that nobody computes (drop_rows.h). gather_rows does not write them,
/// sum_rows does not read them and adds 0, and permute_elems, where either x or y is of rows, of
/// rank 1, gives 0 for their elements. So gradients of dropped pairs are 0.
///
/// With `partial`, the maps of these three are partial (ops/partial_maps.h), and R may be any
/// number. gather_rows does not write rows of no pair; sum_rows adds 0 for a pair without a row,
/// and NaN for one that lacks room; so does permute_elems give 0 and NaN for pairs, and 0 for rows
/// of no pair. Rows of gather_rows may then be FP8. Attributes:
struct DroppedRows {
  bool drops = false;
  void fields(auto&& visit) { visit("drops", drops); }
  friend bool operator==(const DroppedRows&, const DroppedRows&) = default;
};

struct MovedRowsAttributes {
  DroppedRows dropped = {};
  PartialMaps partial = {};
  void fields(auto&& visit) {
    visit.optional(dropped);
    visit.optional(partial);
  }
};

/// routed_swiglu: gate_up [R,2F], weights f32 [R], offsets i32 [E+1] -> y [R,F]; y[r] = weights[r]
/// * silu(gate) * up, rounded once; gate and up alternate as in swiglu (activation.h).
/// routed_swiglu_backward: gate_up, weights, dy [R,F], offsets -> d_gate_up [R,2F], d_weights f32
/// [R]; d_weights of a row is the sum over it of dy * silu(gate) * up. Rows from offsets[E] on are
/// neither read nor written. The weight is applied here, and not to the sum of the experts'
/// outputs, because these then need not be kept: the result is the same but for rounding. Source:
/// Guo et al., SonicMoE, 2025.
///
/// routed_relu2: x [R,F], weights f32 [R], offsets i32 [E+1] -> y [R,F]; y[r] = weights[r] *
/// max(x, 0)^2, of experts without a gate. routed_relu2_backward: x, weights, dy [R,F], offsets ->
/// dx [R,F], d_weights f32 [R]. Otherwise as routed_swiglu.

extern const OpDefinition kSortRowsOp;
extern const OpDefinition kGatherRowsOp;
extern const OpDefinition kSumRowsOp;
extern const OpDefinition kPermuteElemsOp;
extern const OpDefinition kRoutedSwigluOp;
extern const OpDefinition kRoutedSwigluBackwardOp;
extern const OpDefinition kRoutedRelu2Op;
extern const OpDefinition kRoutedRelu2BackwardOp;

struct ExpertRows {
  ValueId row_of;   ///< i32 [T,K]
  ValueId pair_of;  ///< i32 [R]
  ValueId offsets;  ///< i32 [E+1]
  ValueId counts;   ///< f32 [E]
  /// Rows from the last offset on are of dropped pairs; `counts` has them, too.
  bool drops = false;
  PartialMaps partial = {};
};

/// Rows for some of the pairs.
struct RowRoom {
  int64_t rows = 0;      ///< R
  int64_t expected = 0;  ///< rows that there are with equal loads
  bool drops = false;
};

/// `tally`: i64 [num_experts], a value of kind kTally; nothing: rows are not counted.
ExpertRows sort_rows(GraphBuilder& builder, ValueId experts, int64_t num_experts,
                     std::optional<ValueId> tally, std::string_view site);
/// The same of pairs of which some have no expert, for rows of limited room.
ExpertRows sort_rows_into(GraphBuilder& builder, ValueId experts, int64_t num_experts,
                          const RowRoom& room, std::string_view site);
ValueId gather_rows(GraphBuilder& builder, ValueId x, const ExpertRows& rows,
                    std::string_view site);
ValueId sum_rows(GraphBuilder& builder, ValueId x, const ExpertRows& rows, std::string_view site);
/// The weights [T,K] of pairs in the order of rows: [R].
ValueId sort_weights(GraphBuilder& builder, ValueId weights, const ExpertRows& rows,
                     std::string_view site);
ValueId routed_swiglu(GraphBuilder& builder, ValueId gate_up, ValueId weights, ValueId offsets,
                      std::string_view site);
ValueId routed_relu2(GraphBuilder& builder, ValueId x, ValueId weights, ValueId offsets,
                     std::string_view site);

}  // namespace braid
