#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ops/expert_exchange.h"
#include "ops/graph.h"
#include "ops/op.h"
#include "ops/tally.h"

namespace braid {

/// The exchange of rows of experts (ops/expert_exchange.h) for ranks that cannot read each other's
/// memory: rows_to_blocks, all_to_all of the blocks, blocks_to_rows. How many rows a member has for
/// another is data, but messages have fixed sizes. So there is a block for each pair of members,
/// with room for `block_rows` rows, of which the rows that exist are sent and read.
///
/// A member's rows for another are consecutive: those of the other's first expert first. The first
/// block_rows of them are in the block, in this order, in both directions. The others are dropped.
/// A member that holds experts has room for all rows that can be in its blocks, in the order of
/// dispatch_rows; so nothing is dropped for lack of room.
///
/// rows_to_blocks: x [N,C], weights f32 [N], offsets_of_all i32 [P (E+1)] -> blocks u8 [P B].
/// blocks_to_rows: blocks u8 [P B], offsets_of_all -> y [N,C], y_weights f32 [N], offsets i32
/// [L+1], tally i64 [5] with `watch`. Without has_weights there are no weights, y_weights and
/// offsets.
///
/// Block j is for member j, or from it; B follows from RowBlockLayout. With `held`, N = P
/// block_rows, and x and y are the rows of the experts that this member holds; rows behind the last
/// offset are neither read nor written, and blocks_to_rows writes the offsets and the tally.
/// Otherwise N = R, and x and y are the rows that this member has for all experts; rows that do not
/// fit their block come back as zeros, without `drops` as NaN, and rows of several copies as their
/// sum, as those of combine_rows. What of a block has no row is not written.
///
/// Each op is the other's dual, with the same attributes: what one does to values, the other does
/// to gradients.
struct RowBlocksAttributes {
  int64_t member = 0;   ///< this rank's place in the group
  int64_t experts = 1;  ///< E
  int64_t copies = 1;
  int64_t rows = 1;        ///< R, of each member
  int64_t block_rows = 1;  ///< room of a block
  bool has_weights = true;
  bool held = false;
  bool drops = false;
  WatchAttribute watch = {};  ///< of blocks_to_rows with weights and `held`
  void fields(auto&& visit) {
    visit("member", member);
    visit("experts", experts);
    visit("copies", copies);
    visit("rows", rows);
    visit("block_rows", block_rows);
    visit("has_weights", has_weights);
    visit("held", held);
    visit("drops", drops);
    visit.optional(watch);
  }
};

extern const OpDefinition kRowsToBlocksOp;
extern const OpDefinition kBlocksToRowsOp;

/// Where the parts of rows lie in a block: all of the first part, then all of the next one. Parts
/// begin at multiples of 16 bytes.
struct RowBlockLayout {
  /// Bytes of a row, then those of its weight, if there are weights.
  RowBlockLayout(int64_t row_bytes, int64_t weight_bytes, int64_t block_rows);

  int64_t weights_at = 0;  ///< bytes before the first weight
  int64_t bytes = 0;       ///< of a block
};

/// What a spec of these ops says.
struct RowBlocks {
  explicit RowBlocks(const OpSpec& spec);

  RowBlocksAttributes attributes;
  bool packs = false;  ///< rows_to_blocks
  size_t rows = 0;     ///< operand x or y
  size_t weights = 0;  ///< the operand behind it, if has_weights
  size_t offsets_of_all = 0;
  size_t blocks = 0;
  size_t offsets = 0;  ///< written; 0: none
  size_t tally = 0;    ///< 0: none
  int64_t members = 1;
  int64_t local_experts = 1;
  int64_t row_bytes = 0;
  int64_t weight_bytes = 0;  ///< 0: no weights

  RowBlockLayout layout() const { return {row_bytes, weight_bytes, attributes.block_rows}; }
};

/// Whether the op is one of these.
bool is_of_row_blocks(const OpSpec& spec);

/// Whether the spec exchanges blocks of rows. What other members send must fit the offsets of the
/// step.
bool exchanges_row_blocks(const OpSpec& spec);

/// The same as dispatch_rows and combine_rows by three nodes. Requires group.block_rows > 0.
DispatchedRows dispatch_by_blocks(GraphBuilder& builder, const RowsToDispatch& rows,
                                  const ExpertGroup& group, std::optional<ValueId> tally,
                                  std::string_view site);
ValueId combine_by_blocks(GraphBuilder& builder, ValueId x, ValueId offsets_of_all,
                          int64_t num_rows, const ExpertGroup& group, std::string_view site);

}  // namespace braid
