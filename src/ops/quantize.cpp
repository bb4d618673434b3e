#include "ops/quantize.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "ops/activation.h"
#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr int64_t kSquareAlignment = 4;

/// An op that a quantize task can do itself: its result has the rows of its first input, and
/// depends on each of its elements, or pairs of them, alone.
struct Source {
  const OpDefinition* op = nullptr;
  int num_inputs = 1;
  int64_t width_divisor = 1;     ///< of the first input, for the result
  int64_t dy_width_divisor = 1;  ///< of the first input, for the second
};

constexpr Source kSources[] = {
    {&kSwigluOp, 1, 2}, {&kSwigluBackwardOp, 2, 1, 2}, {&kGeluOp, 1, 1}, {&kGeluBackwardOp, 2, 1},
    {&kRelu2Op, 1, 1},  {&kRelu2BackwardOp, 2, 1},
};

const Source* find_source(std::string_view op) {
  const auto* const found =
      std::ranges::find_if(kSources, [&](const Source& it) { return it.op->name == op; });
  return found == std::end(kSources) ? nullptr : found;
}

/// Requires an op that can be a source.
const Source& source_of(const QuantizeAttributes& attributes) {
  const Source* const source = find_source(attributes.source.of);
  check(source != nullptr, "op quantize: it cannot be done with {}", attributes.source.of);
  return *source;
}

int64_t blocks_of(int64_t elems, int64_t block) {
  return (elems + block - 1) / block;
}

/// One copy of x and its scales.
void expect_copy(OperandChecker& operands, const std::string& name, const Shape& shape,
                 const ScaleLayout& scales) {
  const OperandSpec& copy = operands.next_floating(name, Access::kWrite, 2);
  operands.require(copy.shape == shape && is_fp8(copy.dtype),
                   fmt::format("{} must be f8e4m3 or f8e5m2 {}", name, to_string(shape)));
  operands.expect(name + "_scales", Access::kWrite, scales.dtype(), scales.shape(shape));
}

/// What is rounded: an operand, or the result of a source, whose inputs are checked.
OperandSpec next_value(OperandChecker& operands, const OpSpec& spec,
                       const QuantizeAttributes& attributes) {
  if (attributes.source == SourceAttribute{}) {
    return operands.next_floating("x", Access::kRead, 2);
  }
  const OperandSpec& input = operands.next_floating("input", Access::kRead, 2);
  const Source& source = source_of(attributes);
  operands.require(input.shape[1] % (source.width_divisor * source.dy_width_divisor) == 0,
                   "the input must hold pairs");
  if (source.num_inputs == 2) {
    operands.expect("dy", Access::kRead, input.dtype,
                    {input.shape[0], input.shape[1] / source.dy_width_divisor});
  }
  return quantized_value(spec);
}

void check_quantize(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec x = next_value(operands, spec, attributes);
  operands.require(x.dtype == DType::kF32 || x.dtype == DType::kBF16, "x must be f32 or bf16");
  operands.require(!attributes.rounds.main_weights ||
                       (x.dtype == DType::kF32 && spec.op == kQuantizeWeightOp.name),
                   "main weights are an f32 weight");
  operands.require(attributes.row || attributes.column, "there is no copy to write");
  operands.require(attributes.block == 0 || attributes.block == 32 || attributes.block == 128,
                   "block must be 0, 32 or 128");
  operands.require(!attributes.square || attributes.block != 0,
                   "one scale for the whole matrix has no squares");
  const ScaleLayout scales = attributes.scales();
  if (attributes.row) {
    expect_copy(operands, "row", x.shape, scales);
  }
  if (attributes.column) {
    expect_copy(operands, "column", {x.shape[1], x.shape[0]}, scales);
  }
  if (attributes.has_bias) {
    operands.expect("db", accumulate_access(attributes.accumulate), DType::kF32, {x.shape[1]});
  }
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(Fp8Tally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

}  // namespace

Shape ScaleLayout::shape(const Shape& data) const {
  if (block == 0) {
    return {1};
  }
  const int64_t along = blocks_of(data[1], block);
  if (!stores_squares()) {
    return {along, data[0]};
  }
  return {blocks_of(data[0], block), blocks_of(along, kSquareAlignment) * kSquareAlignment};
}

QuantizeOperands::QuantizeOperands(const QuantizeAttributes& attributes) {
  int next = attributes.source == SourceAttribute{} ? 1 : source_of(attributes).num_inputs;
  if (attributes.row) {
    row = next;
    next += 2;
  }
  if (attributes.column) {
    column = next;
    next += 2;
  }
  if (attributes.has_bias) {
    db = next++;
  }
  if (attributes.watch.watch) {
    tally = next;
  }
}

bool is_quantize_source(std::string_view op) {
  return find_source(op) != nullptr;
}

OperandSpec quantized_value(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  OperandSpec x = spec.operands[0];
  if (!(attributes.source == SourceAttribute{})) {
    x.shape = {x.shape[0], x.shape[1] / source_of(attributes).width_divisor};
  }
  return x;
}

std::optional<OpSpec> quantize_source(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  if (attributes.source == SourceAttribute{}) {
    return std::nullopt;
  }
  const int num_inputs = source_of(attributes).num_inputs;
  OpSpec source{
      attributes.source.of, {}, {spec.operands.begin(), spec.operands.begin() + num_inputs}};
  OperandSpec x = quantized_value(spec);
  x.access = Access::kWrite;
  source.operands.push_back(x);
  return source;
}

bool reads_values_twice(const OpSpec& spec) {
  const bool makes_copies = spec.op == kQuantizeOp.name || spec.op == kQuantizeWeightOp.name;
  return makes_copies && attributes_of<QuantizeAttributes>(spec).block == 0;
}

std::string_view watched_factor(const OpSpec& spec, Phase phase) {
  if (spec.op != kQuantizeOp.name) {
    return "w";
  }
  return phase == Phase::kForward ? "x" : "dy";
}

const OpDefinition kQuantizeOp{
    .name = "quantize",
    .summary =
        "FP8 copies of x, or of the result of an op of x, by rows and by columns, with their "
        "scales.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_quantize,
    .cost = elementwise_cost<4>,
    .recompute = Recompute::kNorms,
    .split = kNeverSplit,
    .tally = TallyKind::kFp8Losses,
};

const OpDefinition kQuantizeWeightOp{
    .name = "quantize_weight",
    .summary = "FP8 copies of a weight by rows and by columns, with their scales.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_quantize,
    .cost = elementwise_cost<4>,
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
    .tally = TallyKind::kFp8Losses,
};

}  // namespace braid
