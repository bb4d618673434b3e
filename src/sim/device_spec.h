#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace braid {

/// What attention reaches of the peak for products: `fraction` over long sequences, half of that
/// at `half_tokens`.
struct AttentionRate {
  double fraction = 1;
  double half_tokens = 0;
};

/// Of one direction, by head size.
struct AttentionRates {
  AttentionRate head_64;
  AttentionRate head_128;
};

/// What the analytic cost model knows about one device. Peaks are those of the data sheet; the
/// fractions say what long, well-shaped work reaches of them.
struct DeviceSpec {
  std::string kind;              ///< "h200"
  std::string description;       ///< "NVIDIA H200 SXM"
  std::string backend = "cuda";  ///< that runs programs on it: Backend::name
  bool is_host = false;          ///< as that backend's: ranks are threads of one process

  double bf16_flops_per_s = 0;  ///< dense, fp32 accumulation; fp16 alike
  double fp8_flops_per_s = 0;   ///< 0: has none
  double f32_flops_per_s = 0;   ///< without tensor cores
  double f64_flops_per_s = 0;
  double gemm_fraction = 1;  ///< of the peak, in long products of good shape under steady load
  double gemm_burst_fraction = 1;  ///< the same where the power limit leaves the clock alone
  AttentionRates attention;
  AttentionRates attention_backward;  ///< bitwise repeatable
  int num_sms = 0;  ///< blocks that run at once; 0: work splits without remainder (a CPU)

  int64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;
  double memory_fraction = 1;    ///< of it, reading and writing large operands
  int64_t cache_bytes = 0;       ///< last level
  int64_t launch_ns = 0;         ///< least time from one small task to the next on a stream
  int64_t step_overhead_ns = 0;  ///< host: launching a step and waiting for its end

  double host_bytes_per_s = 0;  ///< to and from host memory, each direction
  int64_t host_latency_ns = 0;

  /// Rate of matrix products of operands of that dtype. Where the device has none for it, that of
  /// the next wider one.
  double peak_flops_per_s(DType dtype) const;
};

/// Devices that the analytic model knows, in the order of docs/profiles.md.
std::span<const DeviceSpec> known_devices();

/// The device of that kind; null if there is none.
const DeviceSpec* find_device(std::string_view kind);

/// The kind that a device's own name stands for ("NVIDIA H200" gives h200); null if none does.
const DeviceSpec* device_by_name(std::string_view name);

/// "a100, h100, h200, b200, cpu", for messages.
std::string known_device_names();

}  // namespace braid
