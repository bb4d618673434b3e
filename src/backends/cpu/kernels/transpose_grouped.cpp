#include "ops/transpose_grouped.h"

#include "backends/cpu/kernels/expert_ranges.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/grouped_columns.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

/// The definition, bit for bit: other backends are compared with this one. Plain loops over blocks,
/// without regard to speed.
namespace braid {
namespace {

/// FP8 rows [R,C], of which each has its scales together.
template <class Element>
struct Rows {
  const Element* x = nullptr;
  const float* scales = nullptr;
  int64_t columns = 0;

  int64_t blocks() const { return columns / GroupedColumns::kBlock; }
  float scale(int64_t r, int64_t block) const { return scales[r * blocks() + block]; }
  /// Exact, unless it is below the least number of f32.
  float at(int64_t r, int64_t c) const {
    return static_cast<float>(x[r * columns + c]) * scale(r, c / GroupedColumns::kBlock);
  }
};

template <class Element>
CpuKernel transpose_grouped_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<TransposeGroupedAttributes>(spec);
  const Shape shape = spec.operands[0].shape;
  const int64_t num_experts = spec.operands[2].shape[0] - 1;
  return {.run = [=](const KernelArgs& args) {
    const Rows<Element> rows{
        .x = args.data<const Element>(0), .scales = args.data<const float>(1), .columns = shape[1]};
    const ExpertRanges experts(args.data<const int32_t>(2), num_experts, shape[0]);
    auto* const row_scales = args.data<float>(3);
    run_pieces(args.workers, experts.end(), row_grain(rows.blocks()),
               [&](int, int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   for (int64_t b = 0; b < rows.blocks(); ++b) {
                     row_scales[b * shape[0] + r] = rows.scale(r, b);
                   }
                 }
               });
    if (attributes.column) {
      write_columns<Element>(args.workers,
                             {.rows = shape[0],
                              .columns = shape[1],
                              .to = args.data<Element>(4),
                              .scales = args.data<float>(5),
                              .tally = attributes.watch.watch ? args.data<int64_t>(6) : nullptr},
                             experts, [&](int64_t r, int64_t c) { return rows.at(r, c); });
    }
  }};
}

}  // namespace

CpuKernel make_transpose_grouped(const OpSpec& spec, int /*num_workers*/) {
  return spec.operands[0].dtype == DType::kF8E5M2 ? transpose_grouped_kernel<Float8E5M2>(spec)
                                                  : transpose_grouped_kernel<Float8E4M3>(spec);
}

}  // namespace braid
