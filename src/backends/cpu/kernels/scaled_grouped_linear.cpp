#include "ops/scaled_grouped_linear.h"

#include "backends/cpu/kernels/expert_ranges.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/scaled_product.h"
#include "ops/attributes.h"
#include "ops/quantize_grouped.h"

/// One product per expert (scaled_product.h), the first expert first.
namespace braid {
namespace {

constexpr ScaleLayout kRuns{.block = GroupedColumns::kBlock};
constexpr ScaleLayout kSquares{.block = GroupedColumns::kBlock, .square = true};
constexpr size_t kOffsets = 4;

/// part_of(expert, its rows): what it computes.
template <class PartOf>
CpuKernel kernel_of(const OpSpec& spec, ScaledProduct product, const EmulatedSums& sums,
                    const ScaledProductPart& largest, int64_t rows, const PartOf& part_of) {
  if (sums.hopper_sums) {
    product.hopper = HopperSums{};
  }
  product.any_workers = true;
  product.result = spec.operands.size() - 1;
  product.result_dtype = spec.operands[product.result].dtype;
  const int64_t num_experts = spec.operands[kOffsets].shape[0] - 1;
  return {.run =
              [=](const KernelArgs& args) {
                const ExpertRanges experts(args.data<const int32_t>(kOffsets), num_experts, rows);
                for (int64_t e = 0; e < num_experts; ++e) {
                  run_scaled_product(args, product, part_of(e, experts[e]));
                }
              },
          .scratch_bytes = scaled_product_scratch_bytes(product, largest)};
}

/// Rows of an expert.
ElemRange range_of(const ExpertRange& mine) {
  return {mine.begin, mine.begin + mine.count};
}

/// Features of an expert.
ElemRange features_of(int64_t expert, int64_t features) {
  return {expert * features, (expert + 1) * features};
}

}  // namespace

CpuKernel make_scaled_grouped_linear(const OpSpec& spec, int /*num_workers*/) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t depth = spec.operands[0].shape[1];
  const int64_t features = spec.operands.back().shape[1];
  return kernel_of(
      spec, {.a = ScaledFactor(spec, 0, kRuns), .b = ScaledFactor(spec, 2, kSquares)},
      attributes_of<ScaledGroupedLinearAttributes>(spec).sums,
      {.a_rows = {0, rows}, .b_rows = {0, features}, .a_depth = {0, depth}, .b_depth = {0, depth}},
      rows, [=](int64_t e, const ExpertRange& mine) -> ScaledProductPart {
        return {.a_rows = range_of(mine),
                .b_rows = features_of(e, features),
                .a_depth = {0, depth},
                .b_depth = {0, depth},
                .result_row = mine.begin};
      });
}

CpuKernel make_scaled_grouped_linear_dgrad(const OpSpec& spec, int /*num_workers*/) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t features = spec.operands[0].shape[1];
  const int64_t width = spec.operands.back().shape[1];
  return kernel_of(spec, {.a = ScaledFactor(spec, 0, kRuns), .b = ScaledFactor(spec, 2, kSquares)},
                   attributes_of<ScaledGroupedLinearAttributes>(spec).sums,
                   {.a_rows = {0, rows},
                    .b_rows = {0, width},
                    .a_depth = {0, features},
                    .b_depth = {0, features}},
                   rows, [=](int64_t e, const ExpertRange& mine) -> ScaledProductPart {
                     return {.a_rows = range_of(mine),
                             .b_rows = {0, width},
                             .a_depth = {0, features},
                             .b_depth = features_of(e, features),
                             .result_row = mine.begin};
                   });
}

// dw_e [M,K] = dy_e^T x_e: the rows of dw are those of dy^T.
CpuKernel make_scaled_grouped_linear_wgrad(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ScaledGroupedWgradAttributes>(spec);
  const int64_t width = spec.operands[0].shape[0];
  const int64_t features = spec.operands[2].shape[0];
  return kernel_of(spec,
                   {.a = ScaledFactor(spec, 2, kRuns),
                    .b = ScaledFactor(spec, 0, kRuns),
                    .a_operand = 2,
                    .b_operand = 0,
                    .accumulate = attributes.accumulate,
                    .b_scale_first = true},
                   attributes.sums,
                   {.a_rows = {0, features},
                    .b_rows = {0, width},
                    .a_depth = {0, attributes.rows},
                    .b_depth = {0, attributes.rows}},
                   attributes.rows, [=](int64_t e, const ExpertRange& mine) -> ScaledProductPart {
                     const int64_t begin = GroupedColumns::begin(mine.begin, e);
                     return {.a_rows = {0, features},
                             .b_rows = {0, width},
                             .a_depth = {begin, begin + mine.count},
                             .b_depth = {begin, begin + mine.count},
                             .result_row = e * features};
                   });
}

}  // namespace braid
