#include "passes/tensor/split_products.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/blocks.h"
#include "ops/collectives.h"
#include "ops/elementwise.h"
#include "ops/op.h"
#include "ops/scaled_linear.h"
#include "passes/program_rewriter.h"

namespace braid {
namespace {

using Kind = DependentProduct::Kind;

bool is_scaled(const OpSpec& product) {
  return has_role(product, OpRole::kScaledProduct) ||
         has_role(product, OpRole::kScaledProductDgrad);
}

/// Whether rows of x have scales of their own: [ceil(K/block), rows].
bool has_row_scales(const OpSpec& product) {
  return is_scaled(product) && scale_block(product) != 0;
}

/// Pieces of FP8 products have a multiple of this many rows or features: whole blocks of scales,
/// and sizes that libraries accept (ops/quantize_products.h).
int64_t unit_of(const OpSpec& product) {
  return !is_scaled(product) ? 1 : scale_block(product) == 0 ? 16 : 128;
}

int64_t features_of(const OpSpec& product) {
  return product.operands.back().shape[1];
}

/// Whether rows of the weight, with their scales, lie together and are features of the result: of
/// scales, those for squares.
bool has_feature_pieces(const OpSpec& product) {
  return has_role(product, OpRole::kProduct) ||
         (has_role(product, OpRole::kScaledProduct) && scale_block(product) == 128 &&
          features_of(product) % 128 == 0);
}

/// Range of piece i if `count` is cut into `pieces` nearly equal ranges.
std::pair<int64_t, int64_t> piece_of(int64_t count, int64_t pieces, int64_t i) {
  return {count * i / pieces, count * (i + 1) / pieces};
}

/// Rows [begin, end) of a matrix, as an operand.
struct Rows {
  BufferRange range;
  OperandSpec spec;
};

Rows rows_of(const BufferRange& range, OperandSpec spec, int64_t begin, int64_t end) {
  const int64_t width = spec.shape.num_elems() / std::max<int64_t>(1, spec.shape[0]);
  spec.shape[0] = end - begin;
  return {{range.buffer, range.begin + begin * width, range.begin + end * width}, spec};
}

Rows with_access(Rows rows, Access access) {
  rows.spec.access = access;
  return rows;
}

/// Writes the program with the pairs cut.
class Splitter {
 public:
  Splitter(const Program& program, std::span<const DependentProduct> pairs)
      : program_(program), pairs_(pairs), writer_(program) {}

  Program run() {
    constexpr uint32_t kNone = UINT32_MAX;
    std::vector<uint32_t> pair_of(program_.tasks.size(), kNone);
    for (uint32_t i = 0; i < pairs_.size(); ++i) {
      pair_of[pairs_[i].product] = i;
      pair_of[pairs_[i].call] = i;
      if (pairs_[i].scales && !pairs_[i].scales->has_other_readers) {
        pair_of[pairs_[i].scales->join] = i;
      }
    }
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      if (pair_of[task] == kNone) {
        writer_.append(TaskId(task));
      } else {
        const DependentProduct& pair = pairs_[pair_of[task]];
        task == pair.product ? replace_product(pair) : replace_call(pair);
      }
    }
    return writer_.take();
  }

 private:
  void replace_product(const DependentProduct& pair) {
    if (pair.kind == Kind::kGather) {
      return ring_in_front(pair);
    }
    if (pair.kind == Kind::kReduce) {
      return chunks_of_rows(pair);
    }
    pair.overlap.method == OverlapMethod::kRing ? ring_behind(pair) : chunks_of_features(pair);
  }

  /// The task that joins the pieces goes where the call was; the other calls come before it.
  void replace_call(const DependentProduct& pair) {
    if (pair.kind == Kind::kScatter) {  // others, and joins of scales, are not needed any more
      pair.overlap.method == OverlapMethod::kRing ? append_sum(pair) : append_join(pair);
    }
  }

  void ring_in_front(const DependentProduct& pair) {
    const Task& call = task(pair.call);
    const OpSpec& gather = program_.spec(call);
    const auto call_ranges = program_.operands_of(call);
    const Rows own{call_ranges[0], gather.operands[0]};
    const int64_t rows = own.spec.shape[0];
    const auto block = [&](int64_t rank) {
      return rows_of(call_ranges[1], gather.operands[1], rank * rows, (rank + 1) * rows);
    };
    hand_over(pair);
    Rows here = own;
    int64_t rank = pair.rank;
    for (int64_t step = 1; step < pair.num_ranks; ++step) {
      const int64_t next = (pair.rank - step + pair.num_ranks) % pair.num_ranks;
      append_shift(pair, 1, with_access(here, Access::kRead), block(next));
      append_product_block(pair, rank, here);
      rank = next;
      here = with_access(block(next), Access::kRead);
    }
    append_product_block(pair, rank, here);
    if (pair.has_other_readers) {
      const Rows to = block(pair.rank);
      writer_.append({std::string(kCopyOp.name), {}, {own.spec, to.spec}},
                     std::array{own.range, to.range}, call);
    }
  }

  /// The product of the rows `x`, which are those of a rank.
  void append_product_block(const DependentProduct& pair, int64_t rank, const Rows& x) {
    const int64_t rows = x.spec.shape[0];
    if (!pair.scales) {
      return append_product_rows(pair, rank * rows, rows, {.x = &x});
    }
    const Task& call = task(pair.scales->call);
    const auto ranges = program_.operands_of(call);
    const OpSpec& gather = program_.spec(call);
    const int64_t rows_of_scales = gather.operands[0].shape[0];
    const Rows scales = rank == pair.rank
                            ? Rows{ranges[0], gather.operands[0]}
                            : rows_of(ranges[1], gather.operands[1], rank * rows_of_scales,
                                      (rank + 1) * rows_of_scales);
    append_product_rows(pair, rank * rows, rows, {.x = &x, .scales = &scales});
  }

  /// The gathered buffer begins to live here, even if the call could start much earlier.
  void hand_over(const DependentProduct& pair) {
    const BufferRange& x = program_.operands_of(task(pair.call))[0];
    const BufferRange& whole = program_.operands_of(task(pair.call))[1];
    if (pair.call > 0 && writes_to(pair.call - 1, x.buffer)) {
      return;  // it cannot start before the previous task
    }
    if (whole.end - whole.begin < program_.buffers[whole.buffer.index()].num_elems()) {
      return;  // other rows of the buffer are live already
    }
    writer_.append_undefine(whole.buffer, task(pair.product));
  }

  bool writes_to(uint32_t position, BufferId buffer) const {
    const auto ranges = program_.operands_of(task(position));
    const auto& specs = program_.spec(task(position)).operands;
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].buffer == buffer && writes(specs[i].access)) {
        return true;
      }
    }
    return false;
  }

  void ring_behind(const DependentProduct& pair) {
    const Rows whole = result_of(pair);
    const int64_t rows = whole.spec.shape[0] / pair.num_ranks;
    const Rows slots = add_slots(pair, rows);
    const RowScales scales = append_row_scales(pair, pair.num_ranks);
    for (int64_t step = 1; step < pair.num_ranks; ++step) {
      const int64_t owner = (pair.rank + step) % pair.num_ranks;
      const int64_t source = (pair.rank - step + pair.num_ranks) % pair.num_ranks;
      append_product_part(pair, scales, owner);
      const int64_t slot = slot_of(pair, source);
      append_shift(pair, step,
                   with_access(rows_of(whole.range, whole.spec, owner * rows, (owner + 1) * rows),
                               Access::kRead),
                   rows_of(slots.range, slots.spec, slot * rows, (slot + 1) * rows));
    }
    append_product_part(pair, scales, pair.rank);
    parts_.push_back({pair.product, {slots}});
  }

  void append_sum(const DependentProduct& pair) {
    const Rows whole = result_of(pair);
    const Rows slots = take_parts(pair).front();
    const int64_t rows = whole.spec.shape[0] / pair.num_ranks;
    std::vector<Rows> blocks;
    for (int64_t rank = 0; rank < pair.num_ranks; ++rank) {
      const Rows& from = rank == pair.rank ? whole : slots;
      const int64_t place = rank == pair.rank ? rank : slot_of(pair, rank);
      blocks.push_back(with_access(rows_of(from.range, from.spec, place * rows, (place + 1) * rows),
                                   Access::kRead));
    }
    append_combination(kSumBlocksOp, blocks, pair);
  }

  /// The slot of a rank's addend. Slots are in group order and skip the own rank.
  static int64_t slot_of(const DependentProduct& pair, int64_t source) {
    return source < pair.rank ? source : source - 1;
  }

  void chunks_of_features(const DependentProduct& pair) {
    const OpSpec& spec = program_.spec(task(pair.product));
    const auto ranges = program_.operands_of(task(pair.product));
    std::vector<Rows> parts;
    for (int64_t i = 0; i < pair.overlap.splits; ++i) {
      const int64_t unit = unit_of(spec);
      const auto [first, last] = piece_of(features_of(spec) / unit, pair.overlap.splits, i);
      const int64_t begin = first * unit;
      const int64_t end = last * unit;
      OpSpec piece = spec;
      std::vector<BufferRange> operands(ranges.begin(), ranges.end());
      const size_t weight = is_scaled(spec) ? 2 : 1;  // then its scales, and a bias
      for (size_t k = weight; k + 1 < operands.size(); ++k) {
        const bool is_scales = is_scaled(spec) && k == weight + 1;
        const Rows rows = is_scales ? rows_of(ranges[k], spec.operands[k], first, last)
                                    : rows_of(ranges[k], spec.operands[k], begin, end);
        piece.operands[k] = rows.spec;
        operands[k] = rows.range;
      }
      const Rows y = chunk_of(pair, begin, end);
      piece.operands.back() = y.spec;
      operands.back() = y.range;
      writer_.append(piece, operands, task(pair.product));
      parts.push_back(add_chunk_sum(pair, i, end - begin));
      const Rows x = with_access(y, Access::kRead);
      writer_.append({std::string(kReduceScatterOp.name),
                      program_.spec(task(pair.call)).attributes,
                      {x.spec, parts.back().spec}},
                     std::array{x.range, parts.back().range}, task(pair.call));
    }
    parts_.push_back({pair.product, std::move(parts)});
  }

  void append_join(const DependentProduct& pair) {
    std::vector<Rows> parts = take_parts(pair);
    for (Rows& part : parts) {
      part = with_access(part, Access::kRead);
    }
    append_combination(kJoinColumnsOp, parts, pair);
  }

  void chunks_of_rows(const DependentProduct& pair) {
    const Task& call = task(pair.call);
    const Rows whole = result_of(pair);
    const bool in_place = program_.spec(call).operands.size() == 1;
    const int64_t rows = whole.spec.shape[0];
    const RowScales scales = append_row_scales(pair, pair.overlap.splits);
    for (int64_t i = 0; i < pair.overlap.splits; ++i) {
      const auto [begin, end] = piece_of(rows, pair.overlap.splits, i);
      append_product_part(pair, scales, i);
      const Rows x = with_access(rows_of(whole.range, whole.spec, begin, end),
                                 in_place ? Access::kReadWrite : Access::kRead);
      OpSpec spec{std::string(kAllReduceOp.name), program_.spec(call).attributes, {x.spec}};
      std::vector<BufferRange> operands = {x.range};
      if (!in_place) {
        OperandSpec sums = whole.spec;
        const Rows y = rows_of(program_.operands_of(call)[1], sums, begin, end);
        spec.operands.push_back(y.spec);
        operands.push_back(y.range);
      }
      writer_.append(spec, operands, call);
    }
  }

  /// The scales of equal parts of the rows, each as a matrix, one after the other.
  struct RowScales {
    int64_t num_parts = 1;
    std::optional<Rows> all = {};  ///< [num_parts, scales of a part]; none if rows have no scales
  };

  /// Columns of a matrix do not lie together, so one task copies those of all parts.
  RowScales append_row_scales(const DependentProduct& pair, int64_t num_parts) {
    const Task& product = task(pair.product);
    const OpSpec& spec = program_.spec(product);
    if (!has_row_scales(spec)) {
      return {.num_parts = num_parts};
    }
    Rows from{program_.operands_of(product)[1], spec.operands[1]};
    const Shape matrix = from.spec.shape;
    const int64_t columns = matrix[1] / num_parts;
    from.spec.shape = {matrix[0] * num_parts, columns};
    Rows to = from;
    to.spec = with_access(from, Access::kWrite).spec;
    to.spec.shape = {num_parts, matrix[0] * columns};
    to = add_buffer(pair, ".scales", to.spec);
    writer_.append({std::string(kJoinBlocksOp.name), {}, {from.spec, to.spec}},
                   std::array{from.range, to.range}, product);
    return {.num_parts = num_parts, .all = with_access(to, Access::kRead)};
  }

  /// Appends the product of one of equal parts of the rows, or of nearly equal ones if rows have no
  /// scales.
  void append_product_part(const DependentProduct& pair, const RowScales& scales, int64_t part) {
    const OpSpec& spec = program_.spec(task(pair.product));
    const auto [begin, end] = piece_of(spec.operands[0].shape[0], scales.num_parts, part);
    if (!scales.all) {
      return append_product_rows(pair, begin, end - begin, {});
    }
    Rows own = rows_of(scales.all->range, scales.all->spec, part, part + 1);
    own.spec.shape = {spec.operands[1].shape[0], end - begin};
    append_product_rows(pair, begin, end - begin, {.scales = &own});
  }

  /// What some rows of a product read from another place than the whole; null: from there.
  struct RowSources {
    const Rows* x = nullptr;
    const Rows* scales = nullptr;
  };

  /// Appends the product of some rows.
  void append_product_rows(const DependentProduct& pair, int64_t begin, int64_t count,
                           const RowSources& sources) {
    const Task& product = task(pair.product);
    const auto ranges = program_.operands_of(product);
    OpSpec spec = program_.spec(product);
    std::vector<BufferRange> operands(ranges.begin(), ranges.end());
    const Rows from = sources.x != nullptr
                          ? *sources.x
                          : rows_of(ranges[0], spec.operands[0], begin, begin + count);
    const Rows to = rows_of(ranges.back(), spec.operands.back(), begin, begin + count);
    spec.operands[0] = with_access(from, Access::kRead).spec;
    operands[0] = from.range;
    if (sources.scales != nullptr) {
      spec.operands[1] = with_access(*sources.scales, Access::kRead).spec;
      operands[1] = sources.scales->range;
    }
    spec.operands.back() = to.spec;
    operands.back() = to.range;
    writer_.append(spec, operands, product);
  }

  void append_shift(const DependentProduct& pair, int64_t shift, const Rows& x, const Rows& y) {
    const RingShiftAttributes attributes{.group = static_cast<int64_t>(pair.group.index()),
                                         .shift = shift};
    writer_.append({std::string(kRingShiftOp.name), to_attributes(attributes), {x.spec, y.spec}},
                   std::array{x.range, y.range}, task(pair.call));
  }

  /// Appends a task that combines the blocks. It has the position of the call and the stream of the
  /// product.
  void append_combination(const OpDefinition& op, std::span<const Rows> blocks,
                          const DependentProduct& pair) {
    const Task& call = task(pair.call);
    OpSpec spec{std::string(op.name), {}, {}};
    std::vector<BufferRange> operands;
    for (const Rows& block : blocks) {
      spec.operands.push_back(block.spec);
      operands.push_back(block.range);
    }
    spec.operands.push_back(program_.spec(call).operands[1]);
    operands.push_back(program_.operands_of(call)[1]);
    Task place = call;
    place.stream = task(pair.product).stream;
    place.label.phase = task(pair.product).label.phase;
    writer_.append(spec, operands, place);
  }

  const Task& task(uint32_t position) const { return program_.tasks[position]; }

  Rows result_of(const DependentProduct& pair) const {
    const Task& product = task(pair.product);
    return {program_.operands_of(product).back(), program_.spec(product).operands.back()};
  }

  /// Adds a buffer for the addends of the other ranks.
  Rows add_slots(const DependentProduct& pair, int64_t rows) {
    Rows slots = result_of(pair);
    slots.spec.shape[0] = rows * (pair.num_ranks - 1);
    return add_buffer(pair, ".received", slots.spec);
  }

  /// Some features of all rows, as a separate matrix. Together the chunks take up the memory of the
  /// whole result.
  Rows chunk_of(const DependentProduct& pair, int64_t begin, int64_t end) const {
    Rows chunk = result_of(pair);
    const int64_t rows = chunk.spec.shape[0];
    chunk.spec.shape[1] = end - begin;
    chunk.range.end = chunk.range.begin + rows * end;
    chunk.range.begin += rows * begin;
    return chunk;
  }

  Rows add_chunk_sum(const DependentProduct& pair, int64_t index, int64_t features) {
    OperandSpec spec = result_of(pair).spec;
    spec.shape[0] /= pair.num_ranks;
    spec.shape[1] = features;
    return add_buffer(pair, fmt::format(".chunk{}.sum", index), spec);
  }

  Rows add_buffer(const DependentProduct& pair, const std::string& suffix,
                  const OperandSpec& spec) {
    const BufferRange& result = result_of(pair).range;
    Buffer buffer = program_.buffers[result.buffer.index()];
    const bool is_first = result.begin == 0;
    buffer.name += is_first ? suffix : fmt::format("{}.from{}", suffix, result.begin);
    buffer.shape = spec.shape;
    buffer.dtype = spec.dtype;
    const int64_t num_elems = buffer.num_elems();
    return {{writer_.add_buffer(std::move(buffer)), 0, num_elems}, spec};
  }

  /// The buffers that were added for the pieces of the product.
  std::vector<Rows> take_parts(const DependentProduct& pair) {
    const auto found = std::ranges::find(parts_, pair.product, &Parts::product);
    check(found != parts_.end(), "the product at #{} has no pieces", pair.product);
    std::vector<Rows> rows = std::move(found->rows);
    parts_.erase(found);
    return rows;
  }

  struct Parts {
    uint32_t product;
    std::vector<Rows> rows;
  };

  const Program& program_;
  std::span<const DependentProduct> pairs_;
  ProgramRewriter writer_;
  std::vector<Parts> parts_;  // of products whose call has not been reached
};

}  // namespace

bool can_split(const Program& program, const DependentProduct& pair, int64_t min_rows) {
  const OpSpec& product = program.spec(program.tasks[pair.product]);
  const OverlapMethod method = pair.overlap.method;
  const int64_t rows = product.operands[0].shape[0];
  const int64_t splits = pair.overlap.splits;
  const int64_t unit = unit_of(product);
  const int64_t least = std::max<int64_t>(1, min_rows);
  if (method == OverlapMethod::kRing) {
    return pair.kind != Kind::kReduce && pair.num_ranks <= static_cast<int64_t>(kMaxBlocks) &&
           rows / pair.num_ranks >= least && rows % (pair.num_ranks * unit) == 0;
  }
  if (method != OverlapMethod::kChunked || pair.kind == Kind::kGather || splits < 2 ||
      splits > static_cast<int64_t>(kMaxBlocks)) {
    return false;
  }
  if (pair.kind == Kind::kReduce) {
    return rows / splits >= least && (unit == 1 || rows % (splits * unit) == 0);
  }
  return has_feature_pieces(product) && !pair.has_other_readers &&
         features_of(product) / unit / splits * unit >= least;
}

Program split_products(const Program& program, std::span<const DependentProduct> pairs) {
  return Splitter(program, pairs).run();
}

}  // namespace braid
