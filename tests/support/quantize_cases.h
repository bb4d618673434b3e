#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ops/quantize.h"
#include "support/kernel_harness.h"

/// quantize of a stored value and of the result of an op, with which it may be one task.
namespace braid {

inline const std::vector<std::string> kQuantizeSources = {
    "swiglu", "swiglu_backward", "gelu", "gelu_backward", "relu2", "relu2_backward"};

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

/// The inputs of that source for a result [rows, columns]; with "" the result itself.
inline std::vector<OperandSpec> source_inputs(const std::string& of, DType dtype, int64_t rows,
                                              int64_t columns) {
  const OperandSpec one = read(dtype, {rows, columns});
  if (of == "swiglu") {
    return {read(dtype, {rows, 2 * columns})};
  }
  if (of == "swiglu_backward") {
    return {one, read(dtype, {rows, columns / 2})};
  }
  return of.ends_with("_backward") ? std::vector{one, one} : std::vector{one};
}

/// The copies of the result of attributes.source, for a result [rows, columns].
inline OpSpec quantize_of_source(const QuantizeAttributes& attributes, DType dtype, int64_t rows,
                                 int64_t columns, DType format = DType::kF8E4M3) {
  return quantize_spec(attributes, source_inputs(attributes.source.of, dtype, rows, columns),
                       {rows, columns}, format, format);
}

}  // namespace braid
