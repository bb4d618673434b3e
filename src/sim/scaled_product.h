#pragma once

#include <string_view>

#include "base/shape.h"
#include "ir/op_spec.h"
#include "ops/op_traits.h"
#include "sim/device_spec.h"

/// What products of FP8 factors with scales (ops/scaled_linear.h) are on a device.
namespace braid {

/// kNone for specs of other ops.
FactorScales scales_of_factors(const OpSpec& spec);

/// How a device does such a product.
enum class ScaledProductWay : uint8_t {
  kNative,   ///< as it is
  kAsMxfp8,  ///< each scale, a power of two, becomes four E8M0 bytes for 32 elements each
  kAsBf16,   ///< both factors are converted to bf16 in memory, which is exact, and multiplied
};

ScaledProductWay scaled_product_way(const DeviceSpec& device, FactorScales scales);

/// "MXFP8", "MXFP8 (four E8M0 bytes for each f32 scale)", "FP8 with scales of blocks", "bf16, after
/// conversion", ...: what the product is priced as.
std::string_view scaled_product_name(const DeviceSpec& device, FactorScales scales);

/// The rate before tiles and waves, in FLOP/s of the device's peak: that of FP8 or bf16 times a
/// part of it.
double scaled_product_peak(const DeviceSpec& device, FactorScales scales);

/// Bytes of the E8M0 scales of a factor [rows, depth], one for each run of 32 along the depth, in
/// the layout that tensor cores of sm_100 read: tiles of 128 rows by 4 scales, 512 bytes each, with
/// rows and scales padded to whole tiles. Source: cuBLAS 13 manual, "1D Block Scaling Factors
/// Layout".
int64_t swizzled_scale_bytes(const Shape& factor);

/// Bytes that the product itself reads and writes, with factors and scales as it reads them.
double scaled_product_bytes(const DeviceSpec& device, const OpSpec& spec, FactorScales scales);

/// Bytes that conversions to bf16 read and write; 0 if there are none.
double conversion_bytes(const DeviceSpec& device, const OpSpec& spec, FactorScales scales);

}  // namespace braid
