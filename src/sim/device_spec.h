#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// Links of one kind between devices. Latencies are those of NCCL's ring and tree steps, by its
/// protocol.
struct FabricSpec {
  std::string name;          ///< "NVLink 4"
  double bytes_per_s = 0;    ///< per device and direction, from the data sheet
  int64_t ring_step_ns = 0;  ///< from one rank of a ring to the next, large messages (Simple)
  int64_t ring_step_middle_ns = 0;  ///< the same, middle-sized messages (LL128)
  int64_t ring_step_small_ns = 0;   ///< the same, small messages (LL)
  int64_t tree_step_ns = 0;
  int64_t tree_step_middle_ns = 0;
  int64_t tree_step_small_ns = 0;
};

/// A level of the network between nodes: the first `nodes` nodes are a unit, the next as many
/// another one. Traffic that leaves a unit has a part 1 / `oversubscription` of the rate of the
/// devices' own links, as if all devices used the links above at once.
struct NetworkLevel {
  int64_t nodes = 1;
  double oversubscription = 1;
};

/// Where devices of a kind usually are: so many in a node, linked like this.
struct NodeSpec {
  int64_t devices = 8;
  int64_t nodes = 0;  ///< of a cluster that is named without a number of devices; 0: one device
  FabricSpec inside;
  /// Rate of an all-reduce whose sums the switches of a node compute (NVLink SHARP), in bytes of
  /// the buffer, as a fraction of a link's rate; 0: they cannot.
  double multicast = 0;
  FabricSpec network;                ///< between nodes; every device has its own link
  std::vector<NetworkLevel> levels;  ///< from small units to large ones
};

/// How far steps may be from what a device's costs say, and how devices of a kind differ
/// (docs/hardware.md has the source of each number). Relative errors, as fractions.
struct RangeSpec {
  double kernels = 0;          ///< time of compute; 0: kernels were measured on the device
  double node_links = 0.1;     ///< time of communication inside a node
  double network_links = 0.2;  ///< and between nodes
  /// Growth of that time for each doubling of the nodes, by congestion between switches.
  double congestion = 0.02;
  /// Standard deviation of the time of compute between devices: chips need different power for a
  /// clock, and are cooled differently.
  double device_sd = 0.015;
  double step_sd = 0.005;  ///< standard deviation of a step's time on the same devices
};

/// What other software than braid makes of a device, relative to braid's kernels: how a stack of
/// programs runs a model (docs/stacks.md). The defaults are braid.
struct StackSpec {
  std::string name = "braid";
  std::string description = "braid's own kernels, overlap and CUDA graphs";
  double gemm = 1;       ///< rate of matrix products
  double attention = 1;  ///< rate of fused attention
  /// The same in addition on devices with Hopper's kernels: libraries of a time before these.
  double hopper_gemm = 1;
  double hopper_attention = 1;
  double communication = 1;  ///< rate of bytes over links
  bool fused_swiglu = true;  ///< SwiGLU runs in the epilogue of products, where the device can
  double memory_passes = 1;  ///< bytes that ops without products move: more if they are not fused
  /// Times that unfused attention moves the matrix of all scores in the forward, and twice as often
  /// in the backward; 0: attention is fused.
  double score_passes = 0;
  int64_t op_ns = 0;      ///< the least time of an op: the host prepares and launches it
  int64_t op_gap_ns = 0;  ///< behind each op, in which nothing runs: the host waits for it before
                          ///< it launches the next one
  int64_t step_ns = 0;    ///< per step, beside the device's own: data, logging, optimizer calls
  std::string overlap = "auto";  ///< overlap.mode for runs of this stack
  /// How far the time of its compute may be from these figures, as a fraction, and in addition that
  /// of its products of FP8 factors.
  double kernels_range = 0.056;
  double fp8_range = 0.1;
};

/// The analytic cost model's data of one device, as in a device file (docs/hardware.md). Peaks are
/// from the data sheet; the fractions are what long, well-shaped work reaches of them.
struct DeviceSpec {
  std::string kind;         ///< what names it in a cluster: "h200", or the path of its file
  std::string description;  ///< "NVIDIA H200 SXM"
  std::vector<std::string> driver_names;  ///< parts of the name that its driver reports
  std::string backend = "cuda";           ///< Backend::name of the backend that runs programs on it
  bool is_host = false;          ///< ranks are threads of one process, in the host's memory
  bool hopper_products = false;  ///< braid brings kernels of products and of states for it
                                 ///< (backends/cuda/architecture.h, `runs_hopper_kernels`)
  double power_w = 0;            ///< limit; 0: unknown

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
  /// The highest clock of products in a step, relative to that of products alone under steady load,
  /// however little power the rest of the step needs (sim/step_clock.h); 1: not known.
  double most_clock = 1;
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

  NodeSpec node;
  RangeSpec range;
  StackSpec stack;  ///< the software that the costs are for

  /// The rate of matrix products of operands of that dtype. If the device has none, the rate of the
  /// next wider dtype.
  double peak_flops_per_s(DType dtype) const;
};

/// The devices of hardware/, which are part of the program, by name.
std::span<const DeviceSpec> known_devices();

/// The device of that kind; null if there is none.
const DeviceSpec* find_device(std::string_view kind);

/// The device for the name that a driver reports ("NVIDIA H200" gives h200): the one with the
/// longest part of it among its `driver_names`; null if there is none.
const DeviceSpec* device_by_name(std::string_view name);

/// "a100, a100-40, ...", for messages.
std::string known_device_names();

}  // namespace braid
