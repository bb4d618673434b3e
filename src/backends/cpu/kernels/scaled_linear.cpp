#include "ops/scaled_linear.h"

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/scaled_product.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// `is_fast`: with one scale per factor the whole sum stays in the accumulator. Runs of 32 are
/// converted to bf16 before they are multiplied.
HopperSums hopper_sums(int64_t block, int64_t depth, bool is_fast) {
  if (block == 32) {
    return {.core = kHopperBf16, .run = depth, .has_scales = false};
  }
  return {.core = kHopperFp8, .run = block == 0 && is_fast ? depth : 128};
}

CpuKernel kernel_of(const OpSpec& spec, ScaledProduct product, const EmulatedSums& sums,
                    int64_t block, bool is_fast = false) {
  if (sums.hopper_sums) {
    product.hopper = hopper_sums(block, product.a.depth, is_fast);
  }
  product.result_dtype = spec.operands[product.result].dtype;
  const ScaledProductPart all{.a_rows = {0, product.a.rows},
                              .b_rows = {0, product.b.rows},
                              .a_depth = {0, product.a.depth},
                              .b_depth = {0, product.a.depth}};
  return {.run = [=](const KernelArgs& args) { run_scaled_product(args, product, all); },
          .scratch_bytes = scaled_product_scratch_bytes(product, all)};
}

}  // namespace

CpuKernel make_scaled_linear(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ScaledLinearAttributes>(spec);
  return kernel_of(spec,
                   {.a = ScaledFactor(spec, 0, {.block = attributes.block}),
                    .b = ScaledFactor(spec, 2, ScaleLayout::of_weight(attributes.block)),
                    .result = spec.operands.size() - 1,
                    .bias = attributes.has_bias && attributes.adds_bias ? 4 : -1},
                   attributes.sums, attributes.block, /*is_fast=*/true);
}

CpuKernel make_scaled_linear_dgrad(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ScaledLinearDgradAttributes>(spec);
  return kernel_of(spec,
                   {.a = ScaledFactor(spec, 0, {.block = attributes.block}),
                    .b = ScaledFactor(spec, 2, ScaleLayout::of_weight(attributes.block))},
                   attributes.sums, attributes.block);
}

// dw [M,K] = dy^T x: the rows of dw are those of dy^T. cuBLASLt's first factor is x.
CpuKernel make_scaled_linear_wgrad(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ScaledLinearWgradAttributes>(spec);
  return kernel_of(spec,
                   {.a = ScaledFactor(spec, 2, {.block = attributes.block}),
                    .b = ScaledFactor(spec, 0, {.block = attributes.block}),
                    .a_operand = 2,
                    .b_operand = 0,
                    .accumulate = attributes.accumulate,
                    .b_scale_first = true},
                   attributes.sums, attributes.block);
}

}  // namespace braid
