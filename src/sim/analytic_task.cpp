#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "ops/linear_swiglu.h"
#include "ops/op.h"
#include "sim/analytic_model.h"
#include "sim/op_family.h"
#include "sim/scaled_product.h"

namespace braid {
namespace {

struct Tile {
  int64_t rows;
  int64_t columns;
  double efficiency;  ///< relative to the largest: smaller tiles load more per product
};

// The sizes that NVIDIA's guide (see the header) lists for cuBLAS, and larger ones of Hopper's
// kernels; efficiencies are our estimate.
constexpr std::array kTiles = {Tile{256, 192, 1.0},  Tile{192, 256, 1.0},  Tile{256, 128, 1.0},
                               Tile{128, 256, 1.0},  Tile{128, 192, 0.97}, Tile{192, 128, 0.97},
                               Tile{128, 160, 0.93}, Tile{128, 128, 0.88}, Tile{128, 64, 0.7},
                               Tile{64, 128, 0.7},   Tile{64, 64, 0.5}};
constexpr std::array<int64_t, 5> kSplits = {1, 2, 4, 8, 16};
constexpr int64_t kDepthStep = 64;  ///< of a tile's loop
/// Of groups of unequal sizes, the last tile is half empty on average.
constexpr double kLastTilePart = 0.5;
/// The rate of a product of groups relative to that of a dense product, besides empty parts of
/// tiles. Measured in steps on an H200 (bench/gpu/emulated_h200.md) with one expert of 16,384 rows,
/// eight and sixteen.
constexpr double kGroupedEfficiency = 0.97;
/// Of FP8 products of groups: what a tile of 128 x 128 takes besides the steps of its depth, and
/// one that is added to gradients in fp32. From rates on an H200 (docs/experts.md, "FP8 experts").
constexpr int64_t kFp8Tile = 128;
constexpr double kFp8TileNs = 450;
constexpr double kFp8GradientTileNs = 900;
constexpr double kFillNs = 1000.0;     ///< to start a tile's loop, and to write the result; kernels
                                       ///< for groups do both beside the loop of another tile
constexpr double kPartialBytes = 4.0;  ///< of an fp32 partial sum; half of it stays in the cache
/// The share of the power limit that moving operands uses, as a fraction of the time of memory
/// alone.
constexpr double kPowerOfMemory = 1.0 / 3;
constexpr int64_t kQueryTile = 128;
constexpr int64_t kHeadStep = 64;
constexpr double kFewLengths = 1024;  ///< tokens: 8 lengths of blocks

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

double memory_rate(const DeviceSpec& device) {  // bytes per ns
  return device.memory_bytes_per_s * device.memory_fraction * 1e-9;
}

/// A product's bytes, and the rate of tensor cores for its factors.
struct ProductWork {
  double bytes = 0;
  double peak_flops_per_s = 0;
  int left_sms = 0;         ///< on which the product does not run
  bool is_grouped = false;  ///< by a kernel for groups
};

/// Tiles or steps of one group along a size, of which a group has an equal part if it is divided.
double parts_of_group(const GemmShape& shape, int64_t size, int64_t part, bool is_divided) {
  if (shape.groups == 1 || !is_divided) {
    return static_cast<double>(ceil_div(size, part));
  }
  const double mean = static_cast<double>(size) / static_cast<double>(shape.groups);
  return mean / static_cast<double>(part) + kLastTilePart;
}

/// The time of one way to cut a product: the longer of the time of its waves at the clock of short
/// bursts, and of the time that the power limit allows. A last wave that is not full costs time but
/// little power.
double tiled_ns(const DeviceSpec& device, const GemmShape& shape, const ProductWork& work,
                const Tile& tile, int64_t split) {
  const double peak = work.peak_flops_per_s * 1e-9;
  const double sm_rate = peak * device.gemm_burst_fraction / device.num_sms * tile.efficiency;
  const double depth = parts_of_group(shape, ceil_div(shape.depth, split), kDepthStep,
                                      shape.grouped == GroupedSize::kDepth) *
                       kDepthStep;
  const double blocks =
      parts_of_group(shape, shape.rows, tile.rows, shape.grouped == GroupedSize::kRows) *
      static_cast<double>(ceil_div(shape.columns, tile.columns)) *
      static_cast<double>(shape.groups * split);
  const double waves = std::ceil(blocks / (device.num_sms - work.left_sms));
  const double tile_flops = 2.0 * static_cast<double>(tile.rows * tile.columns) * depth;
  const double of_power = blocks * tile_flops / (peak * device.gemm_fraction) +
                          kPowerOfMemory * work.bytes / memory_rate(device);
  const double parts = split == 1
                           ? 0.0
                           : static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
                                 static_cast<double>(split) * kPartialBytes / memory_rate(device);
  const double fill_ns = work.is_grouped ? 0 : kFillNs;
  return std::max(waves * (fill_ns + tile_flops / sm_rate), of_power) + parts;
}

/// What all tiles take besides their steps, by braid's kernel for FP8 products of groups on Hopper.
double fp8_tiles_ns(const DeviceSpec& device, const GemmShape& shape, const ProductWork& work) {
  if (!work.is_grouped || shape.scales == FactorScales::kNone || !device.hopper_products) {
    return 0;
  }
  const double tiles =
      parts_of_group(shape, shape.rows, kFp8Tile, shape.grouped == GroupedSize::kRows) *
      static_cast<double>(ceil_div(shape.columns, kFp8Tile)) * static_cast<double>(shape.groups);
  return tiles / (device.num_sms - work.left_sms) *
         (shape.grouped == GroupedSize::kDepth ? kFp8GradientTileNs : kFp8TileNs);
}

/// On an idle device, but for its launch.
double product_ns(const DeviceSpec& device, const GemmShape& shape, double flops,
                  const ProductWork& work) {
  const double memory_ns = work.bytes / memory_rate(device);
  if (device.num_sms == 0) {
    return std::max(memory_ns, flops / (work.peak_flops_per_s * device.gemm_fraction) * 1e9);
  }
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    for (const int64_t split : kSplits) {
      if (split > 1 && work.is_grouped) {
        break;  // kernels for groups do not split the depth
      }
      best = std::min(best, tiled_ns(device, shape, work, tile, split));
    }
  }
  return std::max(memory_ns, work.is_grouped ? best / kGroupedEfficiency : best) +
         fp8_tiles_ns(device, shape, work);
}

/// The rate of forward products of FP8 factors with one scale each on Hopper, relative to the other
/// products with such scales: their sums stay in the tensor cores, which keep fewer bits. Measured
/// in steps on an H200 (bench/gpu/emulated_h200.md).
constexpr double kFastSumsGain = 1.1;

double sums_gain(const DeviceSpec& device, const OpSpec& spec) {
  return device.hopper_products && has_role(spec, OpRole::kScaledProduct) &&
                 gemm_shape(spec).scales == FactorScales::kOne
             ? kFastSumsGain
             : 1;
}

/// Two kernels convert the factors, if the device does not multiply them as they are.
double scaled_product_ns(const DeviceSpec& device, const OpSpec& spec, const GemmShape& shape,
                         double flops, int left_sms) {
  const double converted = conversion_bytes(device, spec, shape.scales);
  const double conversion_ns =
      converted == 0 ? 0.0
                     : converted / memory_rate(device) + 2 * static_cast<double>(device.launch_ns);
  return conversion_ns + product_ns(device, shape, flops,
                                    {.bytes = scaled_product_bytes(device, spec, shape.scales),
                                     .peak_flops_per_s = scaled_product_peak(device, shape.scales) *
                                                         sums_gain(device, spec),
                                     .left_sms = left_sms,
                                     .is_grouped = is_grouped_product(spec)});
}

/// Of a product without scales.
double plain_product_ns(const DeviceSpec& device, const OpSpec& spec, const GemmShape& shape,
                        const OpCost& cost, int left_sms) {
  return product_ns(device, shape, cost.flops,
                    {.bytes = cost.bytes_read + cost.bytes_written,
                     .peak_flops_per_s = device.peak_flops_per_s(shape.dtype),
                     .left_sms = left_sms,
                     .is_grouped = is_grouped_product(spec)});
}

double gemm_ns(const DeviceSpec& device, const OpSpec& spec, const OpCost& cost, int left_sms = 0) {
  const GemmShape shape = gemm_shape(spec);
  return shape.scales != FactorScales::kNone
             ? scaled_product_ns(device, spec, shape, cost.flops, left_sms)
             : plain_product_ns(device, spec, shape, cost, left_sms);
}

/// What attention that separates documents reaches of the peak, with documents of a mean length: by
/// kernels of braid's own with mma instructions, whose blocks of 64 x 64 pairs are in part outside
/// of short documents. As measured on an H200 with head size 128 (bench/notes.md, "Attention inside
/// documents"): 222 and 151 TFLOP/s of 989.
constexpr AttentionRate kDocumentsForward{.fraction = 0.225, .half_tokens = 205};
constexpr AttentionRate kDocumentsBackward{.fraction = 0.156, .half_tokens = 190};

double document_attention_ns(const DeviceSpec& device, const AttentionShape& shape, double flops) {
  const AttentionRate& reached = shape.backward ? kDocumentsBackward : kDocumentsForward;
  const auto tokens = static_cast<double>(shape.sequence);
  return flops / (device.peak_flops_per_s(shape.dtype) * 1e-9 * reached.fraction * tokens /
                  (tokens + reached.half_tokens));
}

/// Head sizes are padded to the next of 64, 128, 192, 256; those above 128 have the rate of 128.
/// Blocks of causal rows differ in length: with few lengths up to a wave is lost, with many the
/// longest begin first and the rest fill the gaps.
double attention_ns(const DeviceSpec& device, const AttentionShape& shape, double flops) {
  if (shape.documents) {
    return document_attention_ns(device, shape, flops);
  }
  const AttentionRates& rates = shape.backward ? device.attention_backward : device.attention;
  const int64_t padded = ceil_div(shape.head_size, kHeadStep) * kHeadStep;
  const AttentionRate& reached = padded > kHeadStep ? rates.head_128 : rates.head_64;
  double rate = device.peak_flops_per_s(shape.dtype) * 1e-9 * reached.fraction;
  if (device.num_sms > 0) {
    const auto sequence = static_cast<double>(shape.sequence);
    const double blocks = static_cast<double>(shape.sequences * shape.heads) *
                          static_cast<double>(ceil_div(shape.queries, kQueryTile));
    rate *= static_cast<double>(shape.head_size) / static_cast<double>(padded) * sequence /
            (sequence + reached.half_tokens) * blocks /
            (blocks + device.num_sms * std::min(1.0, kFewLengths / sequence));
  }
  return flops / rate;
}

/// The time that an epilogue adds to its product, as a fraction of the product's: `part` at a depth
/// of `kEpilogueDepth`, more where tiles of less depth take less time to hide the same.
struct EpilogueRate {
  double part = 0;
  double exponent = 0;
};
constexpr double kEpilogueDepth = 4096;

/// Dense products, fitted to steps on an H200 (bench/gpu/emulated_h200.md) relative to this model's
/// products: forward nothing; backward, which reads and writes twice as much per element of the
/// product, 6% at depth 5120, 7% at 4096, 13% at 2048 and 17% at 1536.
constexpr EpilogueRate kForwardEpilogue{};
constexpr EpilogueRate kBackwardEpilogue{.part = 0.07, .exponent = 0.9};
/// Products of experts, so that steps of three models on an H200 gain what they were measured to
/// gain (bench/notes.md, "Products of experts with SwiGLU in their epilogue"). Alone, the kernels
/// lose 3% at depth 4096 and 5 to 7% at 2048 forward, 16 to 20% and 27% backward.
constexpr EpilogueRate kGroupedForwardEpilogue{.part = 0.02, .exponent = 0.9};
constexpr EpilogueRate kGroupedBackwardEpilogue{.part = 0.16, .exponent = 0.6};

double epilogue_part(const OpSpec& spec) {
  const bool is_forward = keeps_product(unfused(spec).activation);
  const EpilogueRate rate = is_grouped_product(spec)
                                ? (is_forward ? kGroupedForwardEpilogue : kGroupedBackwardEpilogue)
                                : (is_forward ? kForwardEpilogue : kBackwardEpilogue);
  const auto depth = static_cast<double>(gemm_shape(spec).depth);
  return rate.part * std::pow(kEpilogueDepth / depth, rate.exponent);
}

/// The rate of small products inside of a kernel, as a part of that of large ones: with Hopper's
/// kernels, and with those of other GPUs. Measured for mamba2 and its backward together in three
/// layers on an H200 (bench/notes.md, "States of Mamba-2", versions 10 and 6): 0.21 to 0.29 and
/// 0.16 to 0.22. No other GPU was measured.
constexpr double kHopperInnerProductPart = 0.24;
constexpr double kInnerProductPart = 0.2;

/// Of ops whose time memory bounds, flops per ns.
double arithmetic_rate(const DeviceSpec& device, const OpSpec& spec) {
  if (!find_op(spec.op).has_inner_products) {
    return device.f32_flops_per_s * 1e-9;
  }
  return device.peak_flops_per_s(spec.operands[0].dtype) * device.gemm_fraction *
         (device.hopper_products ? kHopperInnerProductPart : kInnerProductPart) * 1e-9;
}

/// Of a memory-bound op whose bytes alone take `memory_ns`.
double kernel_memory_ns(const DeviceSpec& device, const OpSpec& spec, double memory_ns) {
  if (device.is_host) {
    return memory_ns;
  }
  const KernelRate& rate = find_op(spec.op).kernel_rate;
  return std::max(memory_ns / rate.part, static_cast<double>(rate.least_ns));
}

/// The rates of products and fused attention under the device's software, relative to braid's.
double stack_gemm(const DeviceSpec& device) {
  return device.stack.gemm * (device.hopper_products ? device.stack.hopper_gemm : 1.0);
}

double stack_attention(const DeviceSpec& device) {
  return device.stack.attention * (device.hopper_products ? device.stack.hopper_attention : 1.0);
}

/// Bytes per score of one pass over the scores of unfused attention: 16-bit values, read or
/// written.
constexpr double kScoreBytes = 2;
/// Passes of the backward per pass of the forward: it reads the probabilities, and writes and reads
/// their gradients.
constexpr double kBackwardScorePasses = 2;

/// Attention by products over the whole square of scores, which other kernels scale, mask,
/// normalise and drop: twice the arithmetic of the causal half, and passes over the scores.
double unfused_attention_ns(const DeviceSpec& device, const AttentionShape& shape, double flops) {
  const double scores = static_cast<double>(shape.sequences * shape.heads) *
                        static_cast<double>(shape.queries) * static_cast<double>(shape.sequence);
  const double passes = device.stack.score_passes * (shape.backward ? kBackwardScorePasses : 1.0);
  const double rate =
      device.peak_flops_per_s(shape.dtype) * 1e-9 * device.gemm_fraction * stack_gemm(device);
  return 2 * flops / rate + passes * kScoreBytes * scores / memory_rate(device);
}

/// The time of a task on a device under other software: its ops are never shorter than the host's
/// part, or begin only after the host has seen the end of the one before.
double with_host_part(const DeviceSpec& device, double ns) {
  return std::max(ns, static_cast<double>(device.stack.op_ns)) +
         static_cast<double>(device.stack.op_gap_ns);
}

double fused_ns(const DeviceSpec& device, const OpSpec& spec) {
  const ProductAndActivation parts = unfused(spec);
  return fused_product_ns(device, spec, analytic_task_ns(device, parts.product),
                          analytic_task_ns(device, parts.activation));
}

}  // namespace

double fused_product_ns(const DeviceSpec& device, const OpSpec& spec, double product_ns,
                        double activation_ns) {
  return product_ns + (device.hopper_products && device.stack.fused_swiglu
                           ? std::min(activation_ns, product_ns * epilogue_part(spec))
                           : activation_ns);
}

bool stays_on_its_sms(const DeviceSpec& device, const OpSpec& spec) {
  return device.hopper_products && family_of(spec) == OpFamily::kGemm &&
         (is_fused_product(spec) || is_grouped_product(spec));
}

double slowdown_by_left_sms(const DeviceSpec& device, const OpSpec& spec, int sms) {
  const OpCost cost = spec_cost(spec);
  return gemm_ns(device, spec, cost, sms) / gemm_ns(device, spec, cost);
}

double analytic_task_ns(const DeviceSpec& device, const OpSpec& spec) {
  check_spec(spec);
  const OpCost cost = spec_cost(spec);
  const double bytes = cost.bytes_read + bytes_read_again(spec) + cost.bytes_written;
  double memory_ns = bytes / memory_rate(device);
  const StackSpec& stack = device.stack;
  if (is_fused_product(spec)) {
    return std::max(fused_ns(device, spec), memory_ns + static_cast<double>(device.launch_ns));
  }
  double compute_ns = 0;
  switch (family_of(spec)) {
    case OpFamily::kGemm:
      return with_host_part(device, gemm_ns(device, spec, cost) / stack_gemm(device) +
                                        static_cast<double>(device.launch_ns));
    case OpFamily::kAttention:
      compute_ns =
          stack.score_passes > 0
              ? unfused_attention_ns(device, attention_shape(spec), cost.flops)
              : attention_ns(device, attention_shape(spec), cost.flops) / stack_attention(device);
      break;
    case OpFamily::kMemoryBound:
      compute_ns = cost.flops / arithmetic_rate(device, spec);
      memory_ns = kernel_memory_ns(device, spec, memory_ns) * stack.memory_passes;
      break;
    case OpFamily::kHostCopy:
      return analytic_host_copy_ns(device, host_copy_bytes(spec));
    case OpFamily::kNothing:
      return 0;
    case OpFamily::kCommunication:
      throw_internal_error("op {} communicates: its cost depends on its group", spec.op);
  }
  return with_host_part(device,
                        std::max(compute_ns, memory_ns) + static_cast<double>(device.launch_ns));
}

}  // namespace braid
