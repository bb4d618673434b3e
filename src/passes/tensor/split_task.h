#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/program.h"
#include "ops/op_traits.h"
#include "passes/program_rewriter.h"

namespace braid {

/// How a task of some spec may be cut into pieces that together have its meaning, in any order, as
/// its op says (SplitTraits). A piece is a range along one dimension.
struct SplitRule {
  SplitDimension dimension = SplitDimension::kRows;
  int64_t count = 0;  ///< along it
  /// Pieces begin at multiples of this: whole sequences, or 16 features, or the smallest number of
  /// rows that is a multiple of 16 elements in every operand cut by rows. So operands of a piece
  /// are aligned as well for kernels as those of the whole.
  int64_t unit = 1;
  bool keeps_bits = false;  ///< SplitTraits::keeps_bits
};

/// Nothing if the op cannot be cut or has fewer than two units.
std::optional<SplitRule> split_rule(const OpSpec& spec);

/// [begin, end) along the dimension of the rule. Both are multiples of its unit, or the end is
/// `count`.
struct SplitRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const SplitRange&, const SplitRange&) = default;
};

/// Columns of an operand, a matrix, that a piece reads as a matrix of its own.
struct TakenColumns {
  size_t operand = 0;
  OperandSpec matrix;  ///< the whole one
  SplitRange columns;
};

struct TaskPiece {
  OpSpec spec;
  std::vector<BufferRange> operands;     ///< of an operand in `taken`: the whole matrix
  std::vector<TakenColumns> taken = {};  ///< SplitTraits::has_columns
};

/// A piece of a task. Throws InternalError if its spec has no rule, or if the range is empty, out
/// of bounds, or begins or ends inside a unit.
TaskPiece piece_of_task(const Program& program, TaskId task, const SplitRange& range);

/// The specs of the tasks that `append_piece` makes of a piece.
std::vector<OpSpec> specs_of_piece(const OpSpec& spec, const SplitRange& range);

/// Appends a piece of a task of `program`, the program that the writer began with, on the stream
/// and with the label of `like`; before it tasks that copy the columns that it reads to buffers of
/// its own. Returns the number of tasks.
uint32_t append_piece(ProgramRewriter& writer, const Program& program, const TaskPiece& piece,
                      const Task& like);

/// Half 0 or 1 of the leading dimension of every operand, for any op. The halves are equal.
TaskPiece leading_half(const OpSpec& spec, std::span<const BufferRange> ranges, int64_t half);

/// The program with the task cut into `pieces` (at least 1) nearly equal pieces, one after the
/// other; fewer if the task has fewer units. Drops events. Throws as `piece_of_task`.
Program split_task(const Program& program, TaskId task, int64_t pieces);

}  // namespace braid
