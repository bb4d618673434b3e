#include "ops/mamba2.h"

#include <algorithm>
#include <array>
#include <vector>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr size_t kNumInputs = 7;       // zxbcdt and six weights; then y and rstd
constexpr size_t kV = kNumInputs + 2;  // dv in the backward

void check_sizes(const OperandChecker& operands, const Mamba2Attributes& a) {
  operands.require(a.heads > 0 && a.head_size > 0 && a.state > 0 && a.chunk > 0,
                   "heads, head_size, state and chunk must be positive");
  operands.require(a.groups > 0 && a.heads % a.groups == 0, "groups must divide heads");
  operands.require(a.norm_groups > 0 && a.inner() % a.norm_groups == 0,
                   "norm_groups must divide heads x head_size");
  operands.require(a.dt_min >= 0 && a.dt_min <= a.dt_max, "dt_min must be from 0 to dt_max");
  operands.require(a.epsilon > 0, "epsilon must be positive");
  operands.require(a.weights.count > 0 && a.weights.index >= 0 && a.weights.index < a.weights.count,
                   "weight_part must be one of weight_parts");
}

void check_mamba2(const OpSpec& spec) {
  const auto a = attributes_of<Mamba2Attributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& rows = check_mamba2_inputs(operands, a);
  operands.expect("y", Access::kWrite, rows.dtype, {rows.shape[0], a.inner()});
  operands.expect("rstd", Access::kWrite, accumulator_dtype(rows.dtype),
                  {rows.shape[0], a.norm_groups});
  operands.expect("v", Access::kWrite, rows.dtype, {rows.shape[0], a.inner()});
  operands.done();
}

void check_mamba2_backward(const OpSpec& spec) {
  const auto [a, accumulate] = attributes_of<Mamba2BackwardAttributes>(spec);
  const Access access = accumulate_access(accumulate);
  OperandChecker operands(spec);
  const OperandSpec& rows = check_mamba2_inputs(operands, a);
  const DType accumulator = accumulator_dtype(rows.dtype);
  operands.expect("y", Access::kRead, rows.dtype, {rows.shape[0], a.inner()});
  operands.expect("rstd", Access::kRead, accumulator, {rows.shape[0], a.norm_groups});
  operands.expect("dv", Access::kRead, rows.dtype, {rows.shape[0], a.inner()});
  operands.expect("d_zxbcdt", Access::kWrite, rows.dtype, rows.shape);
  constexpr std::array kGradients = {"d_conv_weight", "d_conv_bias", "d_dt_bias",
                                     "d_a_log",       "d_skip",      "d_norm_weight"};
  for (size_t i = 0; i < kGradients.size(); ++i) {
    operands.expect(kGradients[i], access, accumulator, spec.operands[i + 1].shape);
  }
  operands.done();
}

/// Flops of one row, with sums over a whole chunk as the published kernels compute them.
struct RowFlops {
  double chunk, heads, groups, head_size, state, conv;

  RowFlops(const OpSpec& spec, const Mamba2Attributes& a)
      : chunk(static_cast<double>(std::min(a.chunk, a.sequence))),
        heads(static_cast<double>(a.heads)),
        groups(static_cast<double>(a.groups)),
        head_size(static_cast<double>(a.head_size)),
        state(static_cast<double>(a.state)),
        conv(2.0 * elems(spec, 1) / static_cast<double>(a.weights.count)) {}

  double forward() const {
    return groups * 2 * chunk * state + heads * (2 * chunk * head_size + 4 * head_size * state) +
           conv;
  }
  double states() const { return heads * 2 * head_size * state + conv; }
  double backward() const {
    return heads * (6 * chunk * state + 4 * chunk * head_size + 10 * head_size * state) + 3 * conv;
  }
};

OpCost mamba2_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = mamba2_flops(spec, attributes_of<Mamba2Attributes>(spec));
  return cost;
}

OpCost mamba2_backward_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = mamba2_backward_flops(spec, attributes_of<Mamba2BackwardAttributes>(spec).core);
  return cost;
}

void mamba2_backward(BackwardBuilder& builder, const Node& node) {
  const std::optional<ValueId> dv = builder.grad_of(node.operands[kV]);
  if (!dv) {
    return;
  }
  const ValueId zxbcdt = node.operands[0];
  const ValueId d_zxbcdt = builder.new_grad(zxbcdt);
  std::vector<Operand> operands;
  for (size_t i = 0; i < kV; ++i) {
    operands.push_back({node.operands[i]});
  }
  operands.push_back({*dv});
  operands.push_back({d_zxbcdt, Access::kWrite});
  for (size_t weight = 1; weight < kNumInputs; ++weight) {
    operands.push_back({builder.main_grad(node.operands[weight]), Access::kReadWrite});
  }
  builder.add_node(
      node, "mamba2_backward",
      to_attributes(Mamba2BackwardAttributes{.core = attributes_of<Mamba2Attributes>(node.spec)}),
      operands, Phase::kDgrad);
  builder.add_grad(node, zxbcdt, d_zxbcdt);
}

/// Rows of a sequence belong together; weights are whole.
template <class Attributes>
int64_t sequence_of(const OpSpec& spec) {
  const auto a = attributes_of<Attributes>(spec);
  if constexpr (requires { a.core; }) {
    return a.core.sequence;
  } else {
    return a.sequence;
  }
}

bool is_weight(const OpSpec& /*spec*/, size_t operand) {
  return operand >= 1 && operand < kNumInputs;
}

bool is_by_row_in_backward(const OpSpec& spec, size_t operand) {
  const size_t first_sum = kV + 2;
  return !is_weight(spec, operand) && operand < first_sum;
}

}  // namespace

const OperandSpec& check_mamba2_inputs(OperandChecker& operands, const Mamba2Attributes& a) {
  const OperandSpec& rows = operands.next_floating("zxbcdt", Access::kRead, 2);
  check_sizes(operands, a);
  operands.require(rows.shape[1] == a.row_elems(), "a row must hold z, x, B, C and dt");
  operands.require(a.sequence > 0 && rows.shape[0] % a.sequence == 0,
                   "rows must be a multiple of sequence");
  const int64_t parts = a.weights.count;
  const OperandSpec& taps = operands.next_floating("conv_weight", Access::kRead, 2);
  operands.require(
      taps.shape[1] > 0 && taps.dtype == rows.dtype && taps.shape[0] == parts * a.convolved(),
      "conv_weight must have the dtype of zxbcdt and a row for each of x, B and C");
  operands.expect("conv_bias", Access::kRead, rows.dtype, {parts * a.convolved()});
  operands.expect("dt_bias", Access::kRead, rows.dtype, {parts * a.heads});
  operands.expect("a_log", Access::kRead, rows.dtype, {parts * a.heads});
  operands.expect("skip", Access::kRead, rows.dtype, {parts * a.heads});
  operands.expect("norm_weight", Access::kRead, rows.dtype, {parts * a.inner()});
  return rows;
}

double mamba2_flops(const OpSpec& spec, const Mamba2Attributes& a) {
  return RowFlops(spec, a).forward() * static_cast<double>(spec.operands[0].shape[0]);
}

double mamba2_backward_flops(const OpSpec& spec, const Mamba2Attributes& a) {
  return RowFlops(spec, a).backward() * static_cast<double>(spec.operands[0].shape[0]);
}

double mamba2_state_flops(const OpSpec& spec, const Mamba2Attributes& a) {
  return RowFlops(spec, a).states() * static_cast<double>(spec.operands[0].shape[0]);
}

const OpDefinition kMamba2Op{
    .name = "mamba2",
    .summary = "Convolution, state space and gated norm of a Mamba-2 layer.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kStateSpace,
    .check = check_mamba2,
    .cost = mamba2_cost,
    .backward = mamba2_backward,
    .recompute = Recompute::kAttention,
    .has_inner_products = true,
    .split = {.dimension = SplitDimension::kRows,
              .keeps_bits = false,
              .is_whole = is_weight,
              .unit = sequence_of<Mamba2Attributes>},
};

const OpDefinition kMamba2BackwardOp{
    .name = "mamba2_backward",
    .summary = "Gradients of mamba2 with respect to its rows and weights.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kStateSpace,
    .check = check_mamba2_backward,
    .cost = mamba2_backward_cost,
    .has_inner_products = true,
    .split = {.dimension = SplitDimension::kNever,  // sums over rows
              .unit = sequence_of<Mamba2BackwardAttributes>},
    .pieces = {.is_by_row = is_by_row_in_backward},
};

ValueId mamba2(GraphBuilder& builder, const Mamba2Operands& operands,
               const Mamba2Attributes& attributes, std::string_view site) {
  const Value rows = builder.value(operands.zxbcdt);
  const Shape inner{rows.shape[0], attributes.inner()};
  const ValueId y = builder.add_activation(fmt::format("{}.y", site), rows.dtype, inner);
  const ValueId rstd =
      builder.add_activation(fmt::format("{}.rstd", site), accumulator_dtype(rows.dtype),
                             {rows.shape[0], attributes.norm_groups});
  const ValueId v = builder.add_activation(site, rows.dtype, inner);
  builder.add_node(
      "mamba2", to_attributes(attributes),
      std::array{Operand{operands.zxbcdt}, Operand{operands.conv_weight},
                 Operand{operands.conv_bias}, Operand{operands.dt_bias}, Operand{operands.a_log},
                 Operand{operands.skip}, Operand{operands.norm_weight}, Operand{y, Access::kWrite},
                 Operand{rstd, Access::kWrite}, Operand{v, Access::kWrite}},
      site);
  return v;
}

}  // namespace braid
