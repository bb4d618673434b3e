#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "ir/program.h"
#include "passes/analysis/piece_names.h"
#include "passes/analysis/piece_rows.h"
#include "passes/analysis/spread_rows.h"
#include "passes/analysis/value_pieces.h"
#include "passes/tensor/row_values.h"

namespace braid {

/// Executes a program on values instead of data, as StepMeaning::Of::kSums says: tasks cut into
/// pieces give the values of the whole task.
///
/// A rank's program says what it does with the data of others, which do the same. So what comes
/// from the rank `d` places on is named after what this rank gives in the same call
/// (PieceNames::at). An all-gather and the shifts of a ring give such a block one name, a
/// reduce-scatter and the sum of shifted blocks give the sum one name.
///
/// With sequence parallelism, a reduce-scatter leaves each rank some rows of a sum that is the same
/// for all. Such rows are named after the whole sum (ValuePiece::stride says which rows other ranks
/// hold), and so is what a rank computes from them until they are gathered again. So a step may
/// spread rows over ranks in another way, as halves of a microbatch do.
///
/// What this rank gives in such calls is not compared by itself (StepMeaning::shown): it is in the
/// names of what comes back.
class PieceInterpreter {
 public:
  explicit PieceInterpreter(const Program& program);

  void run();

  const ValueStore& values() const { return values_; }
  std::vector<uint64_t> take_shown() { return std::move(shown_); }

 private:
  enum class Effect : uint8_t {
    kCompute,
    kRows,
    kSum,
    kColumns,
    kMove,
    kUndefine,
    kNothing,
    kSend,
    kRecv,
    kCollective,
    kGather,
    kScatter,
    kReduce,
    kShift,
    kExchange,
    kBlocks,
  };
  /// What is known of a spec, once for all of its tasks.
  struct SpecFacts {
    Effect effect = Effect::kCompute;
    uint64_t hash = 0;
    std::optional<RowRule> rule;
  };
  /// A group whose calls passes cut, of tensor or context ranks, and this rank's place in it.
  struct PieceGroup {
    uint64_t hash = 0;
    int64_t num_ranks = 1;
    int64_t rank = 0;
    bool is_tensor = false;
    bool has_rows = false;  ///< rows are spread over it: the largest of tensor ranks
  };

  using Pieces = std::vector<ValuePiece>;

  SpecFacts facts_of(const OpSpec& spec) const;
  Effect effect_in_group(const OpSpec& spec) const;
  void find_groups();
  bool run_tasks();
  void run_task(TaskId id);
  const PieceGroup& group(const OpSpec& spec) const;

  Pieces read(const BufferRange& range) const;
  uint64_t with_pieces(uint64_t hash, const Pieces& pieces) const;
  uint64_t seen_by(const OpSpec& spec, std::span<const BufferRange> ranges, uint64_t hash) const;
  uint64_t compute(const OpSpec& spec, std::span<const BufferRange> ranges, uint64_t hash,
                   TaskId id);
  uint64_t count(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id);

  void compute_rows(const RowRule& rule, const OpSpec& spec, std::span<const BufferRange> ranges,
                    TaskId id);
  uint64_t row_name(uint64_t rows, const RowRule& rule, const std::vector<Pieces>& whole);
  void add_up(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id);
  Pieces sum_of(const std::vector<Pieces>& blocks, int64_t num_elems, uint64_t hash, TaskId id);
  std::optional<ValuePiece> sum_over_ranks(std::span<const ValuePiece> addends,
                                           int64_t block_elems);
  void join_columns(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id);

  std::optional<ValuePiece> joined_rows(std::span<const RowOperand> blocks, int64_t begin,
                                        int64_t end);
  bool is_share(const ValuePiece& piece) const;

  void gather(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id);
  void scatter(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id);
  void reduce(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id);
  void shift(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id);
  Pieces received_block(const Pieces& whole, int64_t num_elems, const PieceGroup& in, int64_t rank);
  void exchange(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id);
  void move_blocks(const OpSpec& spec, std::span<const BufferRange> ranges);
  void receive(const BufferRange& range, uint64_t message, TaskId id);
  void learn_rows(const OpSpec& spec, const Pieces& given, int64_t num_elems, int64_t own_first);
  ValuePiece on_rank(ValuePiece piece, const PieceGroup& group, int64_t distance);

  const Program& program_;
  PieceNames names_;
  ValueStore values_;
  std::vector<SpecFacts> specs_;
  std::vector<PieceGroup> groups_;  // by group of the program
  PieceGroup rows_group_;
  SpreadRows spread_;
  std::set<int64_t> unknown_rows_;  // numbers of rows received before it was known which they are
  bool knows_more_ = false;         // which they are has become known
  std::vector<uint64_t> shown_;
};

}  // namespace braid
