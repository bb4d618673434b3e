#include "passes/analysis/step_meaning.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "ops/collectives.h"
#include "ops/linear_swiglu.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "passes/analysis/mixed_hash.h"
#include "passes/analysis/piece_interpreter.h"
#include "passes/gradients/reduction_parts.h"
#include "passes/tensor/row_values.h"

namespace braid {
namespace {

using Piece = StepMeaning::Piece;

uint64_t signed_mixed(uint64_t a, int64_t b) {
  return mixed_hash(a, static_cast<uint64_t>(b));
}

// ---- effects of ops

enum class Effect : uint8_t {
  kCompute,
  kRows,  ///< computes each row of its result from the same row of its operands
  kCollective,
  kReduction,  ///< a collective that can be split; has the meaning of its parts
  kFused,      ///< a fused product and activation; has the meaning of the two
  kSend,
  kRecv,
  kMove,  ///< moves the values of operand 0 to operand 1
  kUndefine,
  kNothing,
};

Effect effect_of(const Program& program, const OpSpec& spec, const Communication& communication) {
  if (communication.is_message()) {
    return communication.op == CommOp::kSend ? Effect::kSend : Effect::kRecv;
  }
  if (!is_alone_in_group(program, spec)) {
    return group_of(program, spec) ? Effect::kCollective : Effect::kCompute;
  }
  if (is_x_to_y(spec)) {
    return Effect::kMove;
  }
  const bool is_in_place = communication.op == CommOp::kAllReduce && spec.operands.size() == 1;
  return is_in_place ? Effect::kNothing : Effect::kCollective;
}

Effect effect_of(const Program& program, const OpSpec& spec) {
  if (does_nothing(spec)) {
    return undefines(spec) ? Effect::kUndefine : Effect::kNothing;
  }
  if (const Communication* const communication = communication_of(spec)) {
    return effect_of(program, spec, *communication);
  }
  const ValueRule rule = value_rule(spec);
  if (rule == ValueRule::kMoved && is_x_to_y(spec)) {
    return Effect::kMove;
  }
  if (rule == ValueRule::kOfParts) {
    return Effect::kFused;
  }
  if (is_row_wise(spec)) {
    return Effect::kRows;
  }
  return group_of(program, spec).has_value() ? Effect::kCollective : Effect::kCompute;
}

/// The parts of a reduction and the hashes of their specs.
struct PartsMeaning {
  ReductionParts parts;
  uint64_t exchange_hash = 0;
  uint64_t sum_hash = 0;
  uint64_t gather_hash = 0;
};

/// The meaning of a spec, computed once for all tasks that have it.
struct SpecMeaning {
  Effect effect = Effect::kCompute;
  uint64_t hash = 0;
  std::optional<Replay> replay = {};
  std::vector<PartsMeaning> parts = {};
  std::optional<ProductAndActivation> unfused = std::nullopt;
};

SpecMeaning meaning_of(const Program& program, const OpSpec& spec) {
  SpecMeaning meaning{.effect = effect_of(program, spec), .hash = hash_value(by_any_engine(spec))};
  for (ReductionParts& parts : reduction_parts(spec, ranks_of_group(program, spec))) {
    meaning.effect = Effect::kReduction;
    PartsMeaning& added = meaning.parts.emplace_back();
    added.exchange_hash = hash_value(parts.exchange);
    added.sum_hash = hash_value(parts.sum);
    added.gather_hash = parts.gather ? hash_value(*parts.gather) : 0;
    added.parts = std::move(parts);
  }
  if (meaning.effect == Effect::kFused) {
    meaning.unfused = unfused(spec);
  }
  if (find_known_op(spec.op) != nullptr) {
    meaning.replay = find_replay(spec);
  }
  return meaning;
}

/// Executes a program on values instead of data.
class Interpreter {
 public:
  explicit Interpreter(const Program& program) : program_(program), values_(program) {
    for (const OpSpec& spec : program.specs.all()) {
      specs_.push_back(meaning_of(program, spec));
    }
  }

  void run() {
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      run_task(TaskId(i));
    }
  }

  const ValueStore& values() const { return values_; }
  std::vector<uint64_t> take_shown() { return std::move(shown_); }

 private:
  void run_task(TaskId id) {
    const Task& task = program_.tasks[id.index()];
    const SpecMeaning& spec = specs_[task.spec.index()];
    const auto ranges = program_.operands_of(task);
    switch (spec.effect) {
      case Effect::kNothing:
        return;
      case Effect::kUndefine:
        values_.write(ranges[0], 0, TaskId());
        return;
      case Effect::kMove:
        values_.move(ranges[0], ranges[1]);
        return;
      case Effect::kSend:
        shown_.push_back(
            seen_by(program_.spec(task), ranges, values_.message(spec.hash, task.label)));
        return;
      case Effect::kRecv:
        compute(program_.spec(task), ranges, values_.message(spec.hash, task.label), id);
        return;
      case Effect::kCollective:
        shown_.push_back(compute(program_.spec(task), ranges, spec.hash, id));
        break;
      case Effect::kReduction:
        for (const PartsMeaning& parts : spec.parts) {
          reduce(parts, ranges, id);
        }
        return;
      case Effect::kFused:
        compute_both(*spec.unfused, ranges, id);
        return;
      case Effect::kRows:
        compute_rows(program_.spec(task), ranges, id);
        return;
      case Effect::kCompute:
        compute(program_.spec(task), ranges, spec.hash, id);
        break;
    }
    replay(spec, ranges, id);
  }

  uint64_t seen_by(const OpSpec& spec, std::span<const BufferRange> ranges, uint64_t hash) const {
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (reads(spec.operands[i].access)) {
        for (const Piece& piece : values_.read(ranges[i])) {
          hash = with_piece(hash, piece);
        }
      }
    }
    return hash;
  }

  /// Writes new values to the results. Returns the hash of everything that the task reads.
  uint64_t compute(const OpSpec& spec, std::span<const BufferRange> ranges, uint64_t hash,
                   TaskId id) {
    if (has_tally(spec)) {
      return count(spec, ranges, id);
    }
    const uint64_t seen = seen_by(spec, ranges, hash);
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (writes(spec.operands[i].access)) {
        values_.write(ranges[i], mixed_hash(seen, i + 1), id);
      }
    }
    return seen;
  }

  /// The task without its tally, then the tally. Returns the hash of what the task reads without
  /// it: that is what other ranks see of a collective.
  uint64_t count(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id) {
    const OpSpec counted = without_tally(spec);
    const uint64_t seen =
        compute(counted, ranges.first(ranges.size() - 1), hash_value(by_any_engine(counted)), id);
    uint64_t counts = seen;
    for (const Piece& piece : values_.read(ranges.back())) {
      counts = with_piece(counts, piece);
    }
    values_.write(ranges.back(), counts, id);
    return seen;
  }

  /// Computes an op that works row by row. Its last operand is the result.
  void compute_rows(const OpSpec& spec, std::span<const BufferRange> ranges, TaskId id) {
    std::vector<std::vector<Piece>> read_pieces;
    for (const BufferRange& range : ranges.first(ranges.size() - 1)) {
      read_pieces.push_back(values_.read_from_begin(range));
    }
    write_rows(spec, std::move(read_pieces), ranges.back(), id);
  }

  /// `read_pieces`: what the op reads, by operand.
  void write_rows(const OpSpec& spec, std::vector<std::vector<Piece>> read_pieces,
                  const BufferRange& result, TaskId id) {
    const int64_t rows = spec.operands[0].shape[0];
    if (result.begin == result.end) {
      return;
    }
    std::vector<RowOperand> operands;
    for (size_t i = 0; i < read_pieces.size(); ++i) {
      operands.push_back({std::move(read_pieces[i]), spec.operands[i].shape.num_elems() / rows});
    }
    const int64_t width = spec.operands.back().shape.num_elems() / rows;
    std::vector<Piece> written;
    for (const RowValue& value : row_values(row_wise_hash(spec), operands, rows)) {
      written.push_back({.begin = value.begin * width,
                         .end = value.end * width,
                         .value = value.value,
                         .first = value.first_row * width,
                         .maker = id});
    }
    values_.write_pieces(result, std::move(written));
  }

  /// Computes the product, then the activation.
  void compute_both(const ProductAndActivation& parts, std::span<const BufferRange> ranges,
                    TaskId id) {
    const auto& [product, activation] = parts;
    PartOperands<BufferRange> own(parts, ranges, {});
    const uint64_t seen = seen_by(product, own.product(), hash_value(product));
    const size_t result = product.operands.size() - 1;
    const uint64_t value = mixed_hash(seen, result + 1);
    const bool is_kept = keeps_product(activation);
    if (is_kept) {
      values_.write(own.product()[result], value, id);
    }
    std::vector<std::vector<Piece>> read_pieces;
    for (size_t i = 0; i < activation.operands.size(); ++i) {
      if (reads(activation.operands[i].access)) {
        const bool is_product = i == handed_on(activation) && !is_kept;
        read_pieces.push_back(
            is_product ? std::vector{Piece{.begin = 0,
                                           .end = product.operands[result].shape.num_elems(),
                                           .value = value}}
                       : values_.read_from_begin(own.activation()[i]));
      }
    }
    if (is_row_wise(activation)) {
      write_rows(activation, std::move(read_pieces), own.activation().back(), id);
    } else {
      write_values(activation, read_pieces, own.activation(), id);
    }
  }

  /// As `compute`, with what the op reads, by operand that is read.
  void write_values(const OpSpec& spec, const std::vector<std::vector<Piece>>& read_pieces,
                    std::span<const BufferRange> ranges, TaskId id) {
    uint64_t seen = hash_value(spec);
    for (const std::vector<Piece>& pieces : read_pieces) {
      for (const Piece& piece : pieces) {
        seen = with_piece(seen, piece);
      }
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (writes(spec.operands[i].access)) {
        values_.write(ranges[i], mixed_hash(seen, i + 1), id);
      }
    }
  }

  /// Gives the result the value that `compute` would give it if it ran the parts one after another.
  void reduce(const PartsMeaning& spec, std::span<const BufferRange> ranges, TaskId id) {
    const ReductionParts& parts = spec.parts;
    const BufferRange x = part_of(ranges.front(), parts.first_elem, parts.num_elems());
    const uint64_t seen = seen_by(parts.exchange, std::span(&x, 1), spec.exchange_hash);
    shown_.push_back(seen);
    const uint64_t received = mixed_hash(seen, 2);
    uint64_t sum = spec.sum_hash;
    for (int64_t i = 0; i < parts.num_ranks; ++i) {
      sum = with_piece(sum, {.begin = 0,
                             .end = parts.block_elems,
                             .value = received,
                             .first = i * parts.block_elems});
    }
    sum = mixed_hash(sum, static_cast<uint64_t>(parts.num_ranks) + 1);
    if (parts.gather) {
      const uint64_t gathered =
          with_piece(spec.gather_hash, {.begin = 0, .end = parts.block_elems, .value = sum});
      shown_.push_back(gathered);
      sum = mixed_hash(gathered, 2);
    }
    values_.write(part_of(ranges.back(), parts.first_elem, parts.num_results()), sum, id);
  }

  static BufferRange part_of(const BufferRange& range, int64_t first_elem, int64_t num_elems) {
    return {range.buffer, range.begin + first_elem, range.begin + first_elem + num_elems};
  }

  static uint64_t with_piece(uint64_t hash, const Piece& piece) {
    return signed_mixed(signed_mixed(mixed_hash(hash, piece.value), piece.first),
                        piece.end - piece.begin);
  }

  void replay(const SpecMeaning& spec, std::span<const BufferRange> ranges, TaskId id) {
    if (!spec.replay) {
      return;
    }
    std::vector<BufferRange> replayed;
    for (const size_t position : spec.replay->operands) {
      replayed.push_back(ranges[position]);
    }
    compute(spec.replay->spec, replayed, hash_value(spec.replay->spec), id);
  }

  const Program& program_;
  ValueStore values_;
  std::vector<SpecMeaning> specs_;
  std::vector<uint64_t> shown_;
};

// ---- comparison

std::string maker_name(const Program& program, TaskId maker) {
  return maker.valid() ? fmt::format("task {} ({})", maker.index(), describe_task(program, maker))
                       : std::string("no task");
}

/// Returns the piece of `after` at the first difference.
const Piece& first_difference(const std::vector<Piece>& before, const std::vector<Piece>& after) {
  const auto [old_piece, piece] = std::ranges::mismatch(
      before, after, [](const Piece& a, const Piece& b) { return a.is_same(b); });
  return piece == after.end() ? after.back() : *piece;
}

bool is_same(const std::vector<Piece>& a, const std::vector<Piece>& b) {
  return std::ranges::equal(a, b, [](const Piece& x, const Piece& y) { return x.is_same(y); });
}

std::string describe_difference(const Program& program, const std::string& name,
                                const Piece& piece) {
  const std::string what = piece.value == 0 ? std::string("is undefined at the end")
                                            : "holds another value at the end, made by " +
                                                  maker_name(program, piece.maker);
  return fmt::format("meaning: persistent buffer {}[{}:{}] {}", name, piece.begin, piece.end, what);
}

}  // namespace

StepMeaning::StepMeaning(const Program& program, Of of) {
  if (of == Of::kBits) {
    take<Interpreter>(program);
  } else {
    take<PieceInterpreter>(program);
  }
}

template <class Interpreter>
void StepMeaning::take(const Program& program) {
  Interpreter interpreter(program);
  interpreter.run();
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.lifetime == Lifetime::kPersistent) {
      buffers_.emplace(buffer.name,
                       interpreter.values().read({BufferId(i), 0, buffer.num_elems()}));
    }
  }
  shown_ = interpreter.take_shown();
  std::ranges::sort(shown_);
  shown_.erase(std::unique(shown_.begin(), shown_.end()), shown_.end());
}

std::vector<Violation> compare_meaning(const StepMeaning& before, const Program& after,
                                       const StepMeaning& meaning_after, size_t max_violations) {
  std::vector<Violation> violations;
  for (const auto& [name, pieces] : before.buffers()) {
    const auto found = meaning_after.buffers().find(name);
    if (found == meaning_after.buffers().end()) {
      violations.push_back({fmt::format("meaning: persistent buffer {} is gone", name)});
    } else if (!is_same(pieces, found->second)) {
      violations.push_back(
          {describe_difference(after, name, first_difference(pieces, found->second))});
    }
  }
  if (before.shown() != meaning_after.shown()) {
    violations.push_back(
        {fmt::format("meaning: {} has other messages or collectives than before, or shows other "
                     "values in them",
                     after.name)});
  }
  violations.resize(std::min(violations.size(), max_violations));
  return violations;
}

}  // namespace braid
