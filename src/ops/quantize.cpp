#include "ops/quantize.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "ops/attributes.h"
#include "ops/operand_checker.h"
#include "ops/quantize_gathered.h"
#include "ops/quantize_grouped.h"
#include "ops/transpose_grouped.h"

namespace braid {
namespace {

constexpr int64_t kSquareAlignment = 4;

bool has_source(const QuantizeAttributes& attributes) {
  return !attributes.source.of.empty();
}

/// Requires an op that can be a source.
const SourceTraits& source_of(const QuantizeAttributes& attributes) {
  const SourceTraits* const source = find_source_traits(attributes.source.of);
  check(source != nullptr, "op quantize: it cannot be done with {}", attributes.source.of);
  return *source;
}

/// Operands in front of the copies.
size_t num_inputs(const QuantizeAttributes& attributes) {
  return has_source(attributes) ? source_of(attributes).num_operands - 1 : 1;
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

/// Checks the operands of a source, which errors name as that op does.
void check_source(const OpSpec& spec) {
  try {
    check_spec(*quantize_source(spec));
  } catch (const InternalError& fault) {
    throw_internal_error("op {}: {}", spec.op, fault.what());
  }
}

/// What is rounded: an operand, or the result of a source, whose operands are checked.
OperandSpec next_value(OperandChecker& operands, const OpSpec& spec,
                       const QuantizeAttributes& attributes) {
  if (!has_source(attributes)) {
    return operands.next_floating("x", Access::kRead, 2);
  }
  check_source(spec);
  operands.skip(num_inputs(attributes));
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

/// One scale for all is known only once all values were read, in their first pass where there are
/// two in any case.
double quantize_bytes_read_again(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  if (has_source(attributes) && source_of(attributes).needs_rows) {
    return size_bytes(quantized_value(spec));
  }
  return attributes.block == 0 ? spec_cost(spec).bytes_read : 0;
}

/// Of copies whose source has a replay: the copies of that one's result.
std::optional<Replay> replay_source(const OpSpec& spec) {
  const std::optional<OpSpec> source = quantize_source(spec);
  const std::optional<Replay> replayed = source ? find_replay(*source) : std::nullopt;
  if (!replayed) {
    return std::nullopt;
  }
  const OpSpec copies = without_tally(spec);
  auto attributes = attributes_of<QuantizeAttributes>(copies);
  const size_t result = source_of(attributes).result;
  Replay replay;
  for (const size_t operand : replayed->operands) {
    if (operand != result) {
      replay.operands.push_back(operand > result ? operand - 1 : operand);
    }
  }
  for (size_t i = num_inputs(attributes); i < copies.operands.size(); ++i) {
    replay.operands.push_back(i);
  }
  attributes.source = {replayed->spec.op, replayed->spec.attributes};
  replay.spec = {spec.op, to_attributes(attributes), {}};
  for (const size_t operand : replay.operands) {
    replay.spec.operands.push_back(copies.operands[operand]);
  }
  replay.spec.operands.front().access = Access::kRead;
  return replay;
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
  int next = static_cast<int>(num_inputs(attributes));
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

const SourceTraits* find_source_traits(std::string_view op) {
  const OpDefinition* const found = find_known_op(op);
  return found == nullptr || found->source.num_operands == 0 ? nullptr : &found->source;
}

OperandSpec quantized_value(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  check(!spec.operands.empty() && spec.operands[0].shape.rank() == 2,
        "op {}: operand 0 (x) is missing or no matrix", spec.op);
  OperandSpec x = spec.operands[0];
  if (has_source(attributes)) {
    x.shape = {x.shape[0], x.shape[1] / source_of(attributes).width_divisor};
  }
  return x;
}

std::optional<OpSpec> quantize_source(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  if (!has_source(attributes)) {
    return std::nullopt;
  }
  const auto operand = [&](size_t i) {
    return spec.operands.begin() + static_cast<ptrdiff_t>(std::min(i, spec.operands.size()));
  };
  const SourceTraits& traits = source_of(attributes);
  OpSpec source{attributes.source.of,
                attributes.source.attributes,
                {operand(0), operand(traits.num_operands - 1)}};
  if (source.operands.size() >= traits.result) {
    OperandSpec x = quantized_value(spec);
    x.access = Access::kWrite;
    source.operands.insert(source.operands.begin() + static_cast<ptrdiff_t>(traits.result), x);
  }
  return source;
}

std::string_view watched_factor(const OpSpec& spec, Phase phase) {
  const bool is_of_activation = spec.op == kQuantizeOp.name || spec.op == kQuantizeGroupedOp.name ||
                                spec.op == kQuantizeGatheredOp.name ||
                                spec.op == kTransposeGroupedOp.name;
  if (!is_of_activation) {
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
    .bytes_read_again = quantize_bytes_read_again,
    .kernel_rate = {.part = 0.92},
    .recompute = Recompute::kNorms,
    .replay_of = replay_source,
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
    .bytes_read_again = quantize_bytes_read_again,
    .kernel_rate = {.part = 0.85},
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
    .tally = TallyKind::kFp8Losses,
};

}  // namespace braid
