#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace braid {

/// The fraction of the peak for products that attention reaches: `fraction` over long sequences,
/// half of that at `half_tokens`.
struct AttentionRate {
  double fraction = 1;
  double half_tokens = 0;
};

/// Rates of one direction, by head size.
struct AttentionRates {
  AttentionRate head_64;
  AttentionRate head_128;
};

/// The rates of products of FP8 factors by their scales (FactorScales), as parts of the rate that
/// tensor cores have in FP8. 0: factors are converted to bf16 first.
struct Fp8Parts {
  double one = 0;
  double squares = 0;
  double runs = 0;
  double runs_of_32 = 0;
};

/// The analytic cost model's data of one device. Peaks are from the data sheet; the fractions are
/// what long, well-shaped work reaches of them.
struct DeviceSpec {
  std::string kind;              ///< "h200"
  std::string description;       ///< "NVIDIA H200 SXM"
  std::string backend = "cuda";  ///< Backend::name of the backend that runs programs on it
  bool is_host = false;          ///< ranks are threads of one process, in the host's memory

  double bf16_flops_per_s = 0;  ///< dense, fp32 accumulation; the same for fp16
  double fp8_flops_per_s = 0;   ///< 0: unsupported
  Fp8Parts fp8_parts;
  bool has_mxfp8 = false;      ///< tensor cores apply one scale for 32 elements; so they do it
                               ///< for larger blocks
  double f32_flops_per_s = 0;  ///< without tensor cores
  double f64_flops_per_s = 0;
  double gemm_fraction = 1;  ///< of the peak, for long products of good shape under steady load
  double gemm_burst_fraction = 1;  ///< the same for bursts, in which the power limit does not
                                   ///< reduce the clock
  AttentionRates attention;
  AttentionRates attention_backward;  ///< for the bitwise repeatable algorithm
  int num_sms = 0;  ///< blocks that run at once; 0: work splits without remainder (a CPU)

  int64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;
  double memory_fraction = 1;    ///< of the bandwidth, reading and writing large operands
  int64_t cache_bytes = 0;       ///< of the last level
  int64_t launch_ns = 0;         ///< minimum time from one small task to the next on a stream
  int64_t step_overhead_ns = 0;  ///< host: launching a step and waiting for its end

  double host_bytes_per_s = 0;  ///< to and from host memory, each direction
  int64_t host_latency_ns = 0;

  /// The rate of matrix products of operands of that dtype. If the device has none, the rate of the
  /// next wider dtype.
  double peak_flops_per_s(DType dtype) const;
};

/// The devices of the analytic model, in the order of docs/profiles.md.
std::span<const DeviceSpec> known_devices();

/// The device of that kind; null if there is none.
const DeviceSpec* find_device(std::string_view kind);

/// The kind for a device's own name ("NVIDIA H200" gives h200); null if there is none.
const DeviceSpec* device_by_name(std::string_view name);

/// "a100, h100, h200, b200, cpu", for messages.
std::string known_device_names();

}  // namespace braid
