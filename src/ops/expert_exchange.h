#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "ops/graph.h"
#include "ops/op.h"
#include "ops/tally.h"

namespace braid {

/// How many rows came to a rank, beside its room: the elements of a tally, i64 [5], to which
/// dispatch_rows adds. `copies` members get the same rows; the first of them counts for the sums.
/// Or how many came to experts, beside their capacity (ops/drop_rows.h).
struct RoomTally {
  static constexpr int64_t kRows = 0;     ///< that came, with or without room; a sum
  static constexpr int64_t kDropped = 1;  ///< of them without room; a sum
  static constexpr int64_t kMost = 2;     ///< that came at once; a maximum. In blocks
                                          ///< (ops/row_blocks.h): at least P times those of a pair
  static constexpr int64_t kRoom = 3;     ///< B
  static constexpr int64_t kEqual = 4;    ///< that come at once with equal loads of the ranks
  static constexpr int64_t kSize = 5;
};

/// Whether rows are FP8 with scales.
struct ScalesAttribute {
  bool has_scales = false;
  void fields(auto&& visit) { visit("has_scales", has_scales); }
  friend bool operator==(const ScalesAttribute&, const ScalesAttribute&) = default;
};

/// Rows that a member has with equal loads, by which an exchange is priced, where it has room for
/// more: those of partial maps (ops/partial_maps.h). 0: as many as its operand has.
struct EqualRows {
  int64_t equal_rows = 0;
  int64_t rows_or(int64_t all) const { return equal_rows > 0 ? equal_rows : all; }
  void fields(auto&& visit) { visit("equal_rows", equal_rows); }
  friend bool operator==(const EqualRows&, const EqualRows&) = default;
};

/// The exchange of rows between ranks that hold different experts. The P members of a group hold E
/// experts: each L of them in a row, and `copies` = P L / E neighbours the same ones, of which each
/// computes a part of every row (expert tensor parallelism). A member has R rows in the order of
/// experts (ops/expert_rows.h); offsets_of_all i32 [P (E+1)] are the offsets of all members, by
/// all_gather.
///
/// dispatch_rows: x [R,...], weights f32 [R], offsets_of_all -> y [B,...], y_weights f32 [B],
/// offsets i32 [L+1], tally i64 [5] with `watch`. Each row goes to all members with its expert. A
/// member receives the rows of its first expert first; of an expert those of member 0 first, in
/// their order: the order that one rank with the rows of all members would have. offsets are those
/// of the received rows.
///
/// combine_rows: x [B,...], weights f32 [B], offsets_of_all -> y [R,...], y_weights f32 [R]. Each
/// row goes back to where it came from, and is there the sum over `copies` members, in f32 in their
/// order, rounded once. It is the dual of dispatch_rows: what one does to values, the other does to
/// gradients. dispatch_rows as a backward writes no offsets.
///
/// Rows and weights have one call. Without has_weights there are no weights, y_weights and offsets.
///
/// With `scales`, dispatch_rows brings rows of FP8 together with their scales: x f8 [R,C], and
/// behind the weights scales f32 [R, C/128] -> y f8 [B,C], and behind y_weights y_scales f32
/// [B, C/128] (quantize_gathered.h makes them, transpose_grouped.h reads them). combine_rows sums,
/// so its rows are never FP8.
///
/// A member has room for B rows. If more would come, those that do not fit are dropped: the offsets
/// end at B, and combine_rows gives zeros for them. Unless `drops`, it gives NaN, so that nobody
/// takes results of their tokens, or gradients, for valid ones. Rows of y from the last offset on
/// are not written.
///
/// Attributes are equal on all members; dtypes of rows are floating. Source: Lepikhin et al.,
/// GShard, 2020; FP8 rows: DeepSeek-V3 (arXiv 2412.19437, 3.3.2).
struct ExpertExchangeAttributes {
  int64_t group = 0;
  int64_t experts = 1;  ///< E
  int64_t copies = 1;
  bool has_weights = true;
  bool drops = false;
  ScalesAttribute scales = {};
  EqualRows equal = {};
  WatchAttribute watch = {};  ///< of dispatch_rows with weights
  void fields(auto&& visit) {
    visit("group", group);
    visit("experts", experts);
    visit("copies", copies);
    visit("has_weights", has_weights);
    visit("drops", drops);
    visit.optional(scales);
    visit.optional(equal);
    visit.optional(watch);
  }
};

/// Places of the operands behind x, as attributes say; -1: there is none.
struct ExpertExchangeOperands {
  explicit ExpertExchangeOperands(const OpSpec& spec);
  int weights = -1;
  int scales = -1;
  int offsets_of_all = -1;
  int y = -1;
  int y_weights = -1;
  int y_scales = -1;
  int offsets = -1;
  int tally = -1;
};

extern const OpDefinition kDispatchRowsOp;
extern const OpDefinition kCombineRowsOp;

/// Whether the op is one of these.
bool exchanges_rows(const OpSpec& spec);

/// Multiprocessors of a GPU that an exchange takes: its kernel has as many blocks
/// (backends/cuda/comm/row_exchange.h).
inline constexpr int kRowExchangeSms = 16;
/// The same for a group with a number of its own (Group::max_sms).
int row_exchange_sms(const Group& group);
/// The most of the program's exchanges; 0 without any.
int row_exchange_sms(const Program& program);

/// Multiprocessors that matrix products leave to communication beside them, at all times.
struct LeftSms {
  /// By products whose blocks stay to their end, which would keep an exchange waiting for as long:
  /// what exchanges beside compute take (on a stream of communication).
  int to_exchanges = 0;
  int by_all = 0;  ///< by all products: Stream::left_sms

  int by_long_blocks() const { return std::max(to_exchanges, by_all); }
};

/// The most over these programs.
LeftSms left_sms(std::span<const Program> programs);

/// The ranks that exchange rows, and what each holds.
struct ExpertGroup {
  std::string_view name;
  int64_t num_ranks = 1;  ///< P
  int64_t experts = 1;    ///< E, of all
  int64_t copies = 1;
  int64_t max_rows = 0;  ///< B
  bool drops = false;
  /// Rows of the blocks by which they exchange (ops/row_blocks.h); 0: they read each other's
  /// memory.
  int64_t block_rows = 0;
  int64_t member = 0;      ///< this rank's place
  int64_t equal_rows = 0;  ///< ExpertExchangeAttributes::equal

  int64_t local_experts() const { return experts * copies / num_ranks; }
};

struct DispatchedRows {
  ValueId x;        ///< [B,C]
  ValueId weights;  ///< f32 [B]
  ValueId offsets;  ///< i32 [L+1]
};

/// Rows, their weights, and the offsets of all ranks of the group.
struct RowsToDispatch {
  ValueId x;
  ValueId weights;
  ValueId offsets_of_all;
};

/// Adds the values of rows like those of x that come to a rank.
DispatchedRows add_dispatched_rows(GraphBuilder& builder, const Value& x, DType weights,
                                   const ExpertGroup& group, std::string_view site);

/// `tally`: i64 [RoomTally::kSize], a value of kind kTally; nothing: rows are not counted.
DispatchedRows dispatch_rows(GraphBuilder& builder, const RowsToDispatch& rows,
                             const ExpertGroup& group, std::optional<ValueId> tally,
                             std::string_view site);
/// [num_rows,C].
ValueId combine_rows(GraphBuilder& builder, ValueId x, ValueId offsets_of_all, int64_t num_rows,
                     const ExpertGroup& group, std::string_view site);

}  // namespace braid
