#pragma once

#include "ops/attributes.h"
#include "ops/quantize_gathered.h"
#include "ops/transpose_grouped.h"
#include "support/expert_rows_cases.h"
#include "support/grouped_copies_cases.h"

/// FP8 rows of experts that travel with their scales.
namespace braid {

/// Sizes whose rows are whole blocks: one token; many per token; experts without rows.
inline constexpr RowSizes kSentRows[] = {{1, 1, 1, 128}, {7, 2, 5, 256}, {19, 8, 64, 384}};

/// Values of very different sizes.
inline std::vector<double> uneven_values(int64_t count, uint64_t seed) {
  TestRandom random(seed);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(20)) - 10));
  }
  return values;
}

/// `end`: the first row of pairs that nobody computes; -1: all are computed.
inline KernelCase quantize_gathered_case(DType dtype, const RowSizes& s, DType format,
                                         int64_t end = -1, bool watch = false) {
  std::vector<OperandSpec> operands{read(dtype, {s.tokens, s.width}), read(DType::kI32, {s.rows()}),
                                    read(DType::kI32, {s.tokens, s.per_token})};
  if (end >= 0) {
    operands.push_back(read(DType::kI32, {3}));
  }
  const Shape rows{s.rows(), s.width};
  operands.push_back(write(format, rows));
  operands.push_back(write(DType::kF32, scales_beside_rows(rows)));
  if (watch) {
    operands.push_back(tally_spec(Fp8Tally::kSize));
  }
  KernelCase kernel(
      {"quantize_gathered",
       to_attributes(QuantizeGatheredAttributes{.dropped = {end >= 0}, .watch = {watch}}),
       std::move(operands)});
  const RowMaps maps(s);
  kernel.set(0, uneven_values(s.tokens * s.width, 11));
  kernel.set(1, maps.pair_of);
  kernel.set(2, maps.row_of);
  if (end >= 0) {
    kernel.set(3, offsets_to(end));
  }
  return kernel;
}

/// The rows that quantize_grouped makes of x, as they come to a rank: poisoned where no expert has
/// any. `x`: its case.
inline KernelCase transpose_grouped_case(const KernelCase& x, const Groups& g,
                                         const TransposeGroupedAttributes& attributes = {}) {
  const DType format = x.spec().operands[2].dtype;
  const Shape rows{g.rows(), g.in};
  std::vector<OperandSpec> operands{read(format, rows), read(DType::kF32, scales_beside_rows(rows)),
                                    read(DType::kI32, {g.num_experts() + 1}),
                                    write(DType::kF32, kRunScales.shape(rows))};
  if (attributes.column) {
    const Shape column{g.in, columns_of(g)};
    operands.push_back(write(format, column));
    operands.push_back(write(DType::kF32, kRunScales.shape(column)));
  }
  if (attributes.watch.watch) {
    operands.push_back(tally_spec(Fp8Tally::kSize));
  }
  KernelCase kernel({"transpose_grouped", to_attributes(attributes), std::move(operands)});
  kernel.set(0, x.values(2));
  const std::vector<double> scales = x.values(3);
  const int64_t blocks = g.in / GroupedColumns::kBlock;
  std::vector<double> beside(scales.size());
  for (size_t i = 0; i < beside.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / blocks;
    const auto block = static_cast<int64_t>(i) % blocks;
    beside[i] = scales[static_cast<size_t>(block * g.rows() + row)];
  }
  kernel.set(1, beside);
  kernel.set(2, g.offsets());
  return kernel;
}

}  // namespace braid
