#include "ops/cached_mamba2.h"

#include <array>

#include "ops/attributes.h"

namespace braid {
namespace {

constexpr size_t kCounts = 8;  // after zxbcdt, six weights and begins

void check_cached_mamba2(const OpSpec& spec) {
  const auto a = attributes_of<Mamba2Attributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& rows = check_mamba2_inputs(operands, a);
  operands.require(a.weights.count == 1, "weight_parts must be 1");
  const OperandSpec& begins = operands.next("begins", Access::kRead, 1);
  operands.require(begins.dtype == DType::kI32 && begins.shape[0] == rows.shape[0] / a.sequence,
                   "begins must be i32, one for each sequence");
  const int64_t sequences = begins.shape[0];
  operands.expect("counts", Access::kRead, DType::kI32, begins.shape);
  operands.expect("window", Access::kReadWrite, rows.dtype,
                  {sequences, spec.operands[1].shape[1], a.convolved()});
  operands.expect("states", Access::kReadWrite, accumulator_dtype(rows.dtype),
                  {sequences, a.heads, a.head_size, a.state});
  operands.expect("v", Access::kWrite, rows.dtype, {rows.shape[0], a.inner()});
  operands.done();
}

/// Per row and element of a state: decay, the product of x and B, and the one with C.
OpCost cached_mamba2_cost(const OpSpec& spec) {
  constexpr double kFlopsPerElement = 5;
  const auto a = attributes_of<Mamba2Attributes>(spec);
  OpCost cost = operand_bytes(spec);
  cost.flops = static_cast<double>(spec.operands[0].shape[0]) *
               (kFlopsPerElement * static_cast<double>(a.heads * a.head_size * a.state) +
                2.0 * elems(spec, 1));
  return cost;
}

IntegerNeed spans_of_rows(const OpSpec& spec, size_t operand) {
  return operand == kCounts
             ? IntegerNeed{.limit = 1 + attributes_of<Mamba2Attributes>(spec).sequence}
             : IntegerNeed{};
}

}  // namespace

const OpDefinition kCachedMamba2Op{
    .name = "cached_mamba2",
    .summary = "Continues convolution and state space of a Mamba-2 layer from cached states.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kStateSpace,
    .check = check_cached_mamba2,
    .cost = cached_mamba2_cost,
    .recompute = Recompute::kNone,
    .has_inner_products = true,
    .split = kNeverSplit,
    .integers = spans_of_rows,
};

ValueId cached_mamba2(GraphBuilder& builder, const Mamba2Operands& operands,
                      const CacheOperands& cache, const Mamba2Attributes& attributes,
                      std::string_view site) {
  const Value rows = builder.value(operands.zxbcdt);
  const int64_t taps = builder.value(operands.conv_weight).shape[1];
  const auto add_cache = [&](std::string_view name, DType dtype, const Shape& shape) {
    return builder.add_value({.name = builder.scoped(fmt::format("{}.{}", site, name)),
                              .dtype = dtype,
                              .shape = shape,
                              .kind = ValueKind::kCache});
  };
  const ValueId window =
      add_cache("window", rows.dtype, {cache.sequences, taps, attributes.convolved()});
  const ValueId states =
      add_cache("states", accumulator_dtype(rows.dtype),
                {cache.sequences, attributes.heads, attributes.head_size, attributes.state});
  const ValueId v = builder.add_activation(site, rows.dtype, {rows.shape[0], attributes.inner()});
  builder.add_node(
      "cached_mamba2", to_attributes(attributes),
      std::array{Operand{operands.zxbcdt}, Operand{operands.conv_weight},
                 Operand{operands.conv_bias}, Operand{operands.dt_bias}, Operand{operands.a_log},
                 Operand{operands.skip}, Operand{operands.norm_weight}, Operand{cache.begins},
                 Operand{cache.counts}, Operand{window, Access::kReadWrite},
                 Operand{states, Access::kReadWrite}, Operand{v, Access::kWrite}},
      site);
  return v;
}

}  // namespace braid
