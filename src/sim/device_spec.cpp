#include "sim/device_spec.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/text.h"

namespace braid {
namespace {

// Data sheets: NVIDIA A100 80GB SXM, H100 SXM, H200 SXM, HGX B200. Fractions of the peak for
// products: for H200 ours, fitted so that the tiles of this model match on average the times of 201
// products under steady load (profiles/h200.json; 5.4% rms). The best products of other devices are
// published (Bekman, Machine Learning Engineering, "Maximum achievable matmul FLOPS": A100 0.87,
// H100 0.80, B200 0.78); we take 0.895 of these, which is the ratio for H100, and scale bursts
// alike. Memory: for H200 ours, for the others the same. Attention on Hopper uses flash-attn-4's
// kernels if they are faster, otherwise cuDNN's, as on other devices: fits to profiles/h200.json
// and bench/notes.md ("Attention"), 4.3% rms.
constexpr AttentionRates kHopper = {.head_64 = {0.551, 850}, .head_128 = {0.675, 570}};
constexpr AttentionRates kHopperBackward = {.head_64 = {0.523, 770}, .head_128 = {0.527, 650}};
constexpr AttentionRates kCudnn = {.head_64 = {0.455, 360}, .head_128 = {0.598, 350}};
constexpr AttentionRates kCudnnBackward = {.head_64 = {0.324, 410}, .head_128 = {0.465, 440}};
// FP8 on Hopper: cuBLASLt's products of llama-8b's layers on an H200, relative to twice the rate of
// those in bf16 (bench/notes.md, "FP8 copies and products"). Blackwell's tensor cores apply scales
// of 32 elements themselves, so all recipes have their full rate; nothing of it is measured.
constexpr Fp8Parts kHopperFp8Parts = {.one = 0.90, .squares = 0.80, .runs = 0.63};
constexpr Fp8Parts kBlackwellFp8Parts = {.one = 1, .squares = 1, .runs = 1, .runs_of_32 = 1};
constexpr double kMemory = 0.875;          // a copy of 4 GiB: 4.19 of 4.80 TB/s
constexpr int64_t kGraphLaunchNs = 1'600;  // per kernel, for the smallest kernels in a graph
constexpr int64_t kStepNs = 30'000;

// Of its nominal memory a GPU gives a process less. An H100 of 80 GB has 78.7 GiB free beside the
// context (0.375 GiB, backends/cuda/device_needs.h), by the driver (bench/notes.md, "Training with
// expert ranks on 4 H100"). An H200 has 140.4 in all; 139 of them, and those of the others, are
// estimates.
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kA100Bytes = 79 * kGiB;
constexpr int64_t kH100Bytes = 79 * kGiB;
constexpr int64_t kH200Bytes = 139 * kGiB;
constexpr int64_t kB200Bytes = 177 * kGiB;

DeviceSpec a100() {
  return {.kind = "a100",
          .description = "NVIDIA A100 80GB SXM",
          .bf16_flops_per_s = 312e12,
          .f32_flops_per_s = 19.5e12,
          .f64_flops_per_s = 19.5e12,
          .gemm_fraction = 0.78,
          .gemm_burst_fraction = 0.83,
          .attention = kCudnn,
          .attention_backward = kCudnnBackward,
          .num_sms = 108,
          .memory_bytes = kA100Bytes,
          .memory_bytes_per_s = 2.039e12,
          .memory_fraction = kMemory,
          .cache_bytes = int64_t{40} << 20,
          .launch_ns = kGraphLaunchNs,
          .step_overhead_ns = kStepNs,
          .host_bytes_per_s = 25e9,
          .host_latency_ns = 10'000};
}

DeviceSpec h100() {
  return {.kind = "h100",
          .description = "NVIDIA H100 SXM",
          .bf16_flops_per_s = 989e12,
          .fp8_flops_per_s = 1979e12,
          .fp8_parts = kHopperFp8Parts,
          .f32_flops_per_s = 67e12,
          .f64_flops_per_s = 67e12,
          .gemm_fraction = 0.715,
          .gemm_burst_fraction = 0.76,
          .attention = kHopper,
          .attention_backward = kHopperBackward,
          .num_sms = 132,
          .memory_bytes = kH100Bytes,
          .memory_bytes_per_s = 3.35e12,
          .memory_fraction = kMemory,
          .cache_bytes = int64_t{50} << 20,
          .launch_ns = kGraphLaunchNs,
          .step_overhead_ns = kStepNs,
          .host_bytes_per_s = 50e9,
          .host_latency_ns = 10'000};
}

DeviceSpec h200() {
  DeviceSpec device = h100();
  device.kind = "h200";
  device.description = "NVIDIA H200 SXM";
  device.memory_bytes = kH200Bytes;
  device.memory_bytes_per_s = 4.8e12;
  return device;
}

DeviceSpec b200() {
  DeviceSpec device = h100();
  device.kind = "b200";
  device.description = "NVIDIA B200 SXM";
  device.bf16_flops_per_s = 2250e12;
  device.fp8_flops_per_s = 4500e12;
  device.fp8_parts = kBlackwellFp8Parts;
  device.has_mxfp8 = true;
  device.f32_flops_per_s = 75e12;
  device.f64_flops_per_s = 37e12;
  device.gemm_fraction = 0.70;
  device.gemm_burst_fraction = 0.745;
  device.attention = kCudnn;
  device.attention_backward = kCudnnBackward;
  device.num_sms = 148;
  device.memory_bytes = kB200Bytes;
  device.memory_bytes_per_s = 7.7e12;
  device.cache_bytes = int64_t{126} << 20;
  return device;
}

// A server processor of 8 cores with 256-bit vectors at 3 GHz: a guess, so that a CPU run can be
// priced at all. A profile of the machine is more accurate (docs/profiles.md).
DeviceSpec cpu() {
  return {.kind = "cpu",
          .description = "a CPU of 8 cores",
          .backend = "cpu",
          .is_host = true,
          .bf16_flops_per_s = 600e9,
          .f32_flops_per_s = 768e9,
          .f64_flops_per_s = 384e9,
          .gemm_fraction = 0.85,
          .attention = {{0.35, 0}, {0.35, 0}},
          .attention_backward = {{0.35, 0}, {0.35, 0}},
          .memory_bytes = int64_t{64} << 30,
          .memory_bytes_per_s = 40e9,
          .memory_fraction = 1.0,
          .cache_bytes = int64_t{32} << 20,
          .launch_ns = 2'000,
          .step_overhead_ns = 20'000,
          .host_bytes_per_s = 10e9,
          .host_latency_ns = 1'000};
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

}  // namespace

double DeviceSpec::peak_flops_per_s(DType dtype) const {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return f64_flops_per_s;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return fp8_flops_per_s > 0 ? fp8_flops_per_s : bf16_flops_per_s;
    case DType::kBF16:
    case DType::kF16:
      return bf16_flops_per_s;
    default:
      return f32_flops_per_s;
  }
}

std::span<const DeviceSpec> known_devices() {
  static const std::vector<DeviceSpec> kDevices = {a100(), h100(), h200(), b200(), cpu()};
  return kDevices;
}

const DeviceSpec* find_device(std::string_view kind) {
  for (const DeviceSpec& device : known_devices()) {
    if (device.kind == kind) {
      return &device;
    }
  }
  return nullptr;
}

const DeviceSpec* device_by_name(std::string_view name) {
  const std::string lower = lower_case(name);
  for (const DeviceSpec& device : known_devices()) {
    if (lower.find(device.kind) != std::string::npos) {
      return &device;
    }
  }
  return nullptr;
}

std::string known_device_names() {
  std::vector<std::string_view> names;
  for (const DeviceSpec& device : known_devices()) {
    names.push_back(device.kind);
  }
  return join(names, ", ");
}

}  // namespace braid
