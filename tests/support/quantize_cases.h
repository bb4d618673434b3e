#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "support/kernel_harness.h"

/// quantize of a stored value and of the result of an op, with which it may be one task.
namespace braid {

inline const std::vector<std::string> kQuantizeSources = {
    "swiglu", "swiglu_backward", "geglu",   "geglu_backward", "gelu",      "gelu_backward",
    "relu2",  "relu2_backward",  "rmsnorm", "add_rmsnorm",    "layernorm", "add_layernorm"};

/// The copies of a value [rows, columns], and what else attributes ask for. `inputs`: of its
/// source, or the value itself.
inline OpSpec quantize_spec(const QuantizeAttributes& attributes, std::vector<OperandSpec> inputs,
                            const Shape& value, DType row_format = DType::kF8E4M3,
                            DType column_format = DType::kF8E4M3) {
  OpSpec spec{"quantize", to_attributes(attributes), std::move(inputs)};
  const ScaleLayout scales = attributes.scales();
  const auto add_copy = [&](DType format, const Shape& shape) {
    spec.operands.push_back(write(format, shape));
    spec.operands.push_back(write(scales.dtype(), scales.shape(shape)));
  };
  if (attributes.row) {
    add_copy(row_format, value);
  }
  if (attributes.column) {
    add_copy(column_format, {value[1], value[0]});
  }
  if (attributes.has_bias) {
    spec.operands.push_back(gradient(attributes.accumulate, DType::kF32, {value[1]}));
  }
  if (attributes.watch.watch) {
    spec.operands.push_back(tally_spec(Fp8Tally::kSize));
  }
  return spec;
}

/// The operands of that source, other than its result [rows, columns]; with "" the result itself.
inline std::vector<OperandSpec> source_operands(const std::string& of, DType dtype, int64_t rows,
                                                int64_t columns) {
  const OperandSpec one = read(dtype, {rows, columns});
  if (of == "swiglu" || of == "geglu") {
    return {read(dtype, {rows, 2 * columns})};
  }
  if (of == "swiglu_backward" || of == "geglu_backward") {
    return {one, read(dtype, {rows, columns / 2})};
  }
  if (of.ends_with("norm")) {
    std::vector<OperandSpec> operands = {one};
    const bool adds = of.starts_with("add_");
    const bool is_centred = of.ends_with("layernorm");
    operands.insert(operands.end(), adds ? 1 : 0, one);
    operands.insert(operands.end(), is_centred ? 2 : 1, read(dtype, {columns}));
    operands.insert(operands.end(), adds ? 1 : 0, write(dtype, one.shape));
    operands.insert(operands.end(), is_centred ? 2 : 1, write(DType::kF32, {rows}));
    return operands;
  }
  return of.ends_with("_backward") ? std::vector{one, one} : std::vector{one};
}

/// The copies of the result of attributes.source, for a result [rows, columns].
inline OpSpec quantize_of_source(QuantizeAttributes attributes, DType dtype, int64_t rows,
                                 int64_t columns, DType format = DType::kF8E4M3) {
  const std::string& of = attributes.source.of;
  if (of.ends_with("norm")) {
    attributes.source.attributes = to_attributes(NormAttributes{});
  }
  return quantize_spec(attributes, source_operands(of, dtype, rows, columns), {rows, columns},
                       format, format);
}

/// The operand of a fused spec's source that is this operand of the fused spec.
inline size_t operand_of_source(const OpSpec& fused, size_t operand) {
  return operand < find_op(quantize_source(fused)->op).source.result ? operand : operand + 1;
}

}  // namespace braid
