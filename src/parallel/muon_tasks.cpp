#include "parallel/muon_tasks.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "ops/attributes.h"
#include "ops/linear.h"
#include "ops/muon.h"

namespace braid {
namespace {

// The coefficients that make singular values grow fastest, at the price of ending between 0.7 and
// 1.2. Source: Jordan et al.
constexpr double kOfX = 3.4445;
constexpr double kOfA = -4.7750;
constexpr double kOfSquare = 2.0315;

OperandSpec operand(DType dtype, Access access, const Shape& shape) {
  return {.dtype = dtype, .access = access, .shape = shape};
}

/// The elements of a unit from a matrix's first to its last.
UnitRange span_of(const LayerMatrix& matrix) {
  return {matrix.begin, matrix.begin + (matrix.rows - 1) * matrix.row_pitch + matrix.columns};
}

double factor_of(MuonScale scale, const LayerMatrix& matrix) {
  const auto rows = static_cast<double>(matrix.full_rows);
  const auto columns = static_cast<double>(matrix.full_columns);
  return scale == MuonScale::kMatchRmsAdamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                            : std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

double MuonTasks::Work::flops() const {
  const auto m = static_cast<double>(rows);
  const auto n = static_cast<double>(columns);
  return 4 * m * m * n + 2 * m * m * m;
}

MuonTasks::MuonTasks(TaskWriter& writer, const ParameterLayout& layout, UnitBuffers& units,
                     const OptimizerOptions& options)
    : writer_(writer), layout_(layout), units_(units), options_(options) {
  find_whole_matrices();
  assign_owners();
}

/// All ranks update parts of a unit of the same size, one after the other.
void MuonTasks::find_whole_matrices() {
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    const int64_t part = units_.owned(unit).num_elems();
    parts_have_whole_matrices_.push_back(part < layout_.units[unit].num_elems);
  }
  for (const LayerMatrix& matrix : layout_.matrices) {
    const int64_t part = units_.owned(matrix.unit).num_elems();
    const UnitRange place = span_of(matrix);
    if (place.begin / part != (place.end - 1) / part) {
      parts_have_whole_matrices_[matrix.unit] = false;
    }
  }
}

MuonTasks::Work MuonTasks::work_of(const LayerMatrix& matrix) {
  const bool transposed =
      matrix.group.empty() ? matrix.rows > matrix.columns : matrix.rows < matrix.full_rows;
  return transposed ? Work{matrix.columns, matrix.rows, true}
                    : Work{matrix.rows, matrix.columns, false};
}

std::string_view MuonTasks::owners(size_t unit) const {
  const ParameterDomain& domain = layout_.domain_of(unit);
  return domain.num_shards > 1 ? domain.shard_group : domain.gradient_group;
}

int64_t MuonTasks::own_index(size_t unit) {
  return writer_.groups().index(owners(unit));
}

/// Gives the largest matrix first, each to the rank with the least work so far. All ranks that
/// share matrices arrive at the same owners, because they have the same layout. Matrices that lie
/// in one rank's part are that rank's.
void MuonTasks::assign_owners() {
  const std::vector<LayerMatrix>& matrices = layout_.matrices;
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](size_t i) { return work_of(matrices[i]).flops(); });
  owner_of_.resize(matrices.size());
  std::map<std::string_view, std::vector<double>> work;  // by group
  for (const size_t i : order) {
    if (parts_have_whole_matrices_[matrices[i].unit]) {
      continue;
    }
    const std::string_view group = owners(matrices[i].unit);
    std::vector<double>& load = work[group];
    load.resize(static_cast<size_t>(writer_.groups().size(group)));
    const auto least = std::ranges::min_element(load);
    *least += work_of(matrices[i]).flops();
    owner_of_[i] = least - load.begin();
  }
}

void MuonTasks::add_op(const OpSpec& spec, std::span<const BufferRange> ranges,
                       const Label& label) {
  writer_.builder().add_task(spec, ranges, writer_.stream(), label);
}

bool MuonTasks::is_own(size_t matrix) {
  const LayerMatrix& facts = layout_.matrices[matrix];
  const UnitRange own = units_.owned(facts.unit);
  return parts_have_whole_matrices_[facts.unit] ? own.begin <= facts.begin && facts.begin < own.end
                                                : owner_of_[matrix] == own_index(facts.unit);
}

UnitBuffer MuonTasks::add_means(size_t unit, const State& state) {
  ProgramBuilder& builder = writer_.builder();
  const UnitRange own = units_.owned(unit);
  const Shape shape{own.num_elems()};
  const BufferId means =
      writer_.step_buffer("muon_means." + layout_.units[unit].name, options_.muon.dtype,
                          own.num_elems(), BufferRole::kScratch);
  add_op({.op = std::string(kMuonMeanOp.name),
          .attributes = to_attributes(MuonMeanAttributes{.momentum = options_.muon.momentum,
                                                         .nesterov = options_.muon.nesterov}),
          .operands = {operand(units_.grads_dtype(), Access::kRead, shape),
                       operand(DType::kF32, Access::kRead, {1}),
                       operand(DType::kF32, Access::kRead, {builder.whole(state.scalars).end}),
                       operand(options_.moments_dtype, Access::kReadWrite, shape),
                       operand(options_.muon.dtype, Access::kWrite, shape)}},
         std::array{units_.main_grads(unit).all(), builder.whole(state.grad_scale),
                    builder.whole(state.scalars), state.exp_avg.all(), builder.whole(means)},
         units_.label(unit, Phase::kOptimizer));
  return {means, own};
}

std::string MuonTasks::name_of(const LayerMatrix& matrix) const {
  return fmt::format("{}.muon{}", layout_.parameters[matrix.parameter].name, matrix.begin);
}

Label MuonTasks::label_of(const LayerMatrix& matrix) {
  Label label = units_.label(matrix.unit, Phase::kOptimizer);
  label.site = writer_.builder().site(name_of(matrix));
  return label;
}

BufferRange MuonTasks::add_scratch(const LayerMatrix& matrix, std::string_view what,
                                   int64_t num_elems, DType dtype) {
  return writer_.builder().whole(writer_.step_buffer(fmt::format("{}.{}", name_of(matrix), what),
                                                     dtype, num_elems, BufferRole::kScratch));
}

BufferRange MuonTasks::take(const LayerMatrix& matrix, const UnitBuffer& means) {
  const DType dtype = options_.muon.dtype;
  const auto [rows, columns, transposed] = work_of(matrix);
  const UnitRange place = span_of(matrix);
  const BufferRange x = add_scratch(matrix, "x", rows * columns, dtype);
  add_op({.op = std::string(kTakeMatrixOp.name),
          .attributes = to_attributes(
              MatrixPlaceAttributes{.pitch = matrix.row_pitch, .transposed = transposed}),
          .operands = {operand(dtype, Access::kRead, {place.num_elems()}),
                       operand(dtype, Access::kWrite, {rows, columns})}},
         std::array{means.at(place), x}, label_of(matrix));
  return x;
}

void MuonTasks::orthogonalize(const LayerMatrix& matrix, const BufferRange& x,
                              const UnitBuffer& directions) {
  ProgramBuilder& builder = writer_.builder();
  const DType dtype = options_.muon.dtype;
  const auto [rows, columns, transposed] = work_of(matrix);
  const Label label = label_of(matrix);
  /// Sums over the ranks that hold the other columns.
  const auto sum_over_columns = [&](const BufferRange& range, const std::string& what) {
    if (!matrix.group.empty()) {
      Label at = label;
      at.phase = Phase::kComm;
      at.site = builder.site(fmt::format("{}.{}", name_of(matrix), what));
      writer_.all_reduce(range, matrix.group, at);
    }
  };
  const Shape whole{rows, columns};
  const Shape square{rows, rows};
  const BufferRange squares = add_scratch(matrix, "squares", 1, DType::kF64);
  add_op({.op = std::string(kMatrixSquaresOp.name),
          .attributes = {},
          .operands = {operand(dtype, Access::kRead, {rows * columns}),
                       operand(DType::kF64, Access::kWrite, {1})}},
         std::array{x, squares}, label);
  sum_over_columns(squares, "squares");
  add_op({.op = std::string(kNormalizeOp.name),
          .attributes = {},
          .operands = {operand(DType::kF64, Access::kRead, {1}),
                       operand(dtype, Access::kReadWrite, {rows * columns})}},
         std::array{squares, x}, label);
  const BufferRange gram = add_scratch(matrix, "gram", rows * rows, dtype);
  const BufferRange polynomial = add_scratch(matrix, "polynomial", rows * rows, dtype);
  const BufferRange product = add_scratch(matrix, "product", rows * columns, dtype);
  const auto add_product = [&](const BufferRange& from, const Shape& shape, const BufferRange& to) {
    add_op({.op = std::string(kLinearOp.name),
            .attributes = to_attributes(LinearAttributes{}),
            .operands = {operand(dtype, Access::kRead, shape), operand(dtype, Access::kRead, shape),
                         operand(dtype, Access::kWrite, square)}},
           std::array{from, from, to}, label);
  };
  const auto add_sum = [&](const WeightedSumAttributes& weights, const BufferRange& from,
                           const BufferRange& to) {
    const Shape shape{to.end - to.begin};
    add_op({.op = std::string(kWeightedSumOp.name),
            .attributes = to_attributes(weights),
            .operands = {operand(dtype, Access::kRead, shape),
                         operand(dtype, Access::kReadWrite, shape)}},
           std::array{from, to}, label);
  };
  for (int64_t step = 0; step < options_.muon.num_steps; ++step) {
    add_product(x, whole, gram);
    sum_over_columns(gram, fmt::format("gram{}", step));
    add_product(gram, square, polynomial);  // gram is symmetric
    add_sum({.x_weight = kOfA, .y_weight = kOfSquare}, gram, polynomial);
    add_op(
        {.op = std::string(kLinearDgradOp.name),
         .attributes = to_attributes(LinearDgradAttributes{}),
         .operands = {operand(dtype, Access::kRead, square), operand(dtype, Access::kRead, whole),
                      operand(dtype, Access::kWrite, whole)}},
        std::array{polynomial, x, product}, label);
    add_sum({.x_weight = 1.0, .y_weight = kOfX}, product, x);
  }
  const UnitRange place = span_of(matrix);
  add_op({.op = std::string(kPutMatrixOp.name),
          .attributes = to_attributes(
              PutMatrixAttributes{.place = {.pitch = matrix.row_pitch, .transposed = transposed},
                                  .factor = factor_of(options_.muon.scale, matrix)}),
          .operands = {operand(dtype, Access::kRead, whole),
                       operand(dtype, Access::kReadWrite, {place.num_elems()})}},
         std::array{x, directions.at(place)}, label);
}

void MuonTasks::orthogonalize_own(size_t unit, const UnitBuffer& matrices) {
  std::vector<std::pair<const LayerMatrix*, BufferRange>> taken;
  for (size_t i = 0; i < layout_.matrices.size(); ++i) {
    if (layout_.matrices[i].unit == unit && is_own(i)) {
      taken.emplace_back(&layout_.matrices[i], take(layout_.matrices[i], matrices));
    }
  }
  writer_.fill_zero(matrices.all(), units_.label(unit, Phase::kOptimizer));
  for (const auto& [matrix, x] : taken) {
    orthogonalize(*matrix, x, matrices);
  }
}

Label MuonTasks::comm_label(size_t unit, std::string_view what) {
  Label label = units_.label(unit, Phase::kComm);
  label.site = writer_.builder().site(fmt::format("{}.{}", layout_.units[unit].name, what));
  return label;
}

/// The means of all ranks, of the whole unit.
UnitBuffer MuonTasks::gather(size_t unit, UnitBuffer means) {
  ProgramBuilder& builder = writer_.builder();
  const ParameterUnit& facts = layout_.units[unit];
  const ParameterDomain& domain = layout_.domain_of(unit);
  const auto gathered = [&](std::string_view name, UnitRange range, std::string_view group,
                            std::string_view what) {
    const BufferId whole =
        writer_.step_buffer(fmt::format("{}.{}", name, facts.name), options_.muon.dtype,
                            range.num_elems(), BufferRole::kScratch);
    writer_.all_gather(means.all(), builder.whole(whole), group, comm_label(unit, what));
    return UnitBuffer{whole, range};
  };
  if (domain.splits_shards()) {
    means = gathered("shard_muon_means", units_.held(unit), domain.replica_group, "replica_means");
  }
  if (domain.num_shards > 1) {
    means = gathered("whole_muon_means", {0, facts.num_elems}, domain.shard_group, "means");
  }
  return means;
}

/// The directions of this rank's elements, of which one rank has other than zero.
UnitBuffer MuonTasks::sum_over_owners(size_t unit, const UnitBuffer& directions) {
  const ParameterDomain& domain = layout_.domain_of(unit);
  if (domain.num_shards == 1) {
    if (writer_.groups().size(domain.gradient_group) > 1) {
      writer_.all_reduce(directions.all(), domain.gradient_group, comm_label(unit, "directions"));
    }
    return directions;
  }
  const UnitRange held = units_.held(unit);
  const UnitBuffer part{
      writer_.step_buffer("own_muon_directions." + layout_.units[unit].name, options_.muon.dtype,
                          held.num_elems(), BufferRole::kScratch),
      held};
  writer_.reduce_scatter(directions.all(), part.all(), domain.shard_group,
                         comm_label(unit, "directions"));
  return part;
}

void MuonTasks::add_update(size_t unit, const UpdateRun& run, const State& state,
                           const UnitBuffer& directions) {
  const UnitRange own = units_.owned(unit);
  const UnitRange range{std::max(own.begin, run.begin), std::min(own.end, run.end)};
  if (range.begin >= range.end) {
    return;
  }
  ProgramBuilder& builder = writer_.builder();
  const bool has_param = units_.dtype(unit) == DType::kBF16;
  const Shape shape{range.num_elems()};
  OpSpec spec{.op = std::string(kMuonUpdateOp.name),
              .attributes = to_attributes(MuonUpdateAttributes{
                  .weight_decay = run.weight_decay ? options_.weight_decay : 0.0,
                  .has_param = has_param,
                  .group = {run.rate}}),
              .operands = {operand(options_.muon.dtype, Access::kRead, shape),
                           operand(DType::kF32, Access::kRead, {1}),
                           operand(DType::kF32, Access::kRead, {3}),
                           operand(DType::kF32, Access::kReadWrite, shape)}};
  std::vector<BufferRange> ranges{directions.at(range), builder.whole(state.grad_scale),
                                  BufferRange{state.scalars, 0, 3}, state.weights.at(range)};
  if (has_param) {
    spec.operands.push_back(operand(DType::kBF16, Access::kWrite, shape));
    ranges.push_back(units_.params(unit).at(range));
  }
  add_op(spec, ranges, units_.label(unit, Phase::kOptimizer));
}

void MuonTasks::update(size_t unit, const State& state) {
  UnitBuffer matrices = add_means(unit, state);
  if (parts_have_whole_matrices_[unit]) {
    orthogonalize_own(unit, matrices);
  } else {
    matrices = gather(unit, matrices);
    orthogonalize_own(unit, matrices);
    matrices = sum_over_owners(unit, matrices);
  }
  for (const UpdateRun& run : layout_.units[unit].runs) {
    add_update(unit, run, state, matrices);
  }
}

}  // namespace braid
