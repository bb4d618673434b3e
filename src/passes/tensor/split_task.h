#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/program.h"
#include "ops/op_traits.h"

namespace braid {

/// How a task of some spec may be cut into tasks that have its meaning together, in any order, as
/// its op says (SplitTraits). A piece is a run of what is counted along one dimension.
struct SplitRule {
  SplitDimension dimension = SplitDimension::kRows;
  int64_t count = 0;  ///< along it
  /// Pieces begin at multiples of this: of whole sequences, and of 16 features or as few rows as
  /// are a multiple of 16 elements of every operand in rows, so that operands of a piece are as
  /// well aligned for kernels as those of the whole.
  int64_t unit = 1;
  bool keeps_bits = false;  ///< SplitTraits::keeps_bits
};

/// None: the op cannot be cut, or there are no two units of it.
std::optional<SplitRule> split_rule(const OpSpec& spec);

/// [begin, end) along the dimension of the rule, both multiples of its unit or the end of all.
struct SplitRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const SplitRange&, const SplitRange&) = default;
};

struct TaskPiece {
  OpSpec spec;
  std::vector<BufferRange> operands;
};

/// A piece of a task. Throws InternalError if its spec has no rule, or if the range is empty, is
/// outside of it, or begins or ends inside a unit.
TaskPiece piece_of_task(const Program& program, TaskId task, const SplitRange& range);

/// The spec alone.
OpSpec piece_of_spec(const OpSpec& spec, const SplitRange& range);

/// Half 0 or 1 of the leading dimension of every operand, of whatever op; of equal halves.
TaskPiece leading_half(const OpSpec& spec, std::span<const BufferRange> ranges, int64_t half);

/// The program with the task in `pieces` (at least 1) nearly equal pieces, one behind the other;
/// fewer if there are not as many units. Events are dropped. Throws as `piece_of_task`.
Program split_task(const Program& program, TaskId task, int64_t pieces);

}  // namespace braid
