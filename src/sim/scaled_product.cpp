#include "sim/scaled_product.h"

#include "base/errors.h"
#include "ops/op.h"
#include "sim/op_family.h"

namespace braid {
namespace {

constexpr size_t kFactors[] = {0, 2};  // operands; the scales of each follow it
constexpr double kBf16Bytes = 2;

double fp8_part(const DeviceSpec& device, FactorScales scales) {
  switch (scales) {
    case FactorScales::kOne:
      return device.fp8_parts.one;
    case FactorScales::kSquares:
      return device.fp8_parts.squares;
    case FactorScales::kRuns:
      return device.fp8_parts.runs;
    case FactorScales::kRunsOf32:
      return device.fp8_parts.runs_of_32;
    case FactorScales::kNone:
      break;
  }
  throw_internal_error("a product without scales has no FP8 rate");
}

int64_t rounded_up(int64_t size, int64_t unit) {
  return (size + unit - 1) / unit * unit;
}

double bytes_of(const OperandSpec& operand) {
  return static_cast<double>(operand.shape.num_elems()) *
         static_cast<double>(dtype_bytes(operand.dtype));
}

double elems_of(const OperandSpec& operand) {
  return static_cast<double>(operand.shape.num_elems());
}

/// What one factor and its scales take in the product.
double factor_bytes(const OpSpec& spec, size_t factor, ScaledProductWay way, bool is_swizzled) {
  const OperandSpec& data = spec.operands[factor];
  if (way == ScaledProductWay::kAsBf16) {
    return kBf16Bytes * elems_of(data);
  }
  return bytes_of(data) + (is_swizzled ? static_cast<double>(swizzled_scale_bytes(data.shape))
                                       : bytes_of(spec.operands[factor + 1]));
}

}  // namespace

FactorScales scales_of_factors(const OpSpec& spec) {
  return family_of(spec) == OpFamily::kGemm ? gemm_shape(spec).scales : FactorScales::kNone;
}

ScaledProductWay scaled_product_way(const DeviceSpec& device, FactorScales scales) {
  if (device.fp8_flops_per_s == 0 || fp8_part(device, scales) == 0) {
    return ScaledProductWay::kAsBf16;
  }
  const bool has_blocks = scales == FactorScales::kSquares || scales == FactorScales::kRuns;
  return device.has_mxfp8 && has_blocks ? ScaledProductWay::kAsMxfp8 : ScaledProductWay::kNative;
}

std::string_view scaled_product_name(const DeviceSpec& device, FactorScales scales) {
  switch (scaled_product_way(device, scales)) {
    case ScaledProductWay::kAsMxfp8:
      return "MXFP8 (four E8M0 bytes for each f32 scale)";
    case ScaledProductWay::kAsBf16:
      return "bf16, after conversion of both factors";
    case ScaledProductWay::kNative:
      break;
  }
  return scales == FactorScales::kRunsOf32 ? "MXFP8"
         : scales == FactorScales::kOne    ? "FP8 with one scale per factor"
                                           : "FP8 with scales of blocks";
}

double scaled_product_peak(const DeviceSpec& device, FactorScales scales) {
  return scaled_product_way(device, scales) == ScaledProductWay::kAsBf16
             ? device.bf16_flops_per_s
             : device.fp8_flops_per_s * fp8_part(device, scales);
}

int64_t swizzled_scale_bytes(const Shape& factor) {
  return rounded_up(factor[0], 128) * rounded_up((factor[1] + 31) / 32, 4);
}

double scaled_product_bytes(const DeviceSpec& device, const OpSpec& spec, FactorScales scales) {
  const OpCost cost = spec_cost(spec);
  const ScaledProductWay way = scaled_product_way(device, scales);
  const bool is_swizzled = device.has_mxfp8 && scales != FactorScales::kOne;
  double bytes = cost.bytes_read + cost.bytes_written;
  for (const size_t factor : kFactors) {
    bytes += factor_bytes(spec, factor, way, is_swizzled) - bytes_of(spec.operands[factor]) -
             bytes_of(spec.operands[factor + 1]);
  }
  return bytes;
}

double conversion_bytes(const DeviceSpec& device, const OpSpec& spec, FactorScales scales) {
  double bytes = 0;
  if (scaled_product_way(device, scales) == ScaledProductWay::kAsBf16) {
    for (const size_t factor : kFactors) {
      bytes += bytes_of(spec.operands[factor]) + bytes_of(spec.operands[factor + 1]) +
               kBf16Bytes * elems_of(spec.operands[factor]);
    }
  }
  return bytes;
}

}  // namespace braid
