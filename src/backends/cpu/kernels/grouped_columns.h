#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/kernels/expert_ranges.h"
#include "backends/cpu/kernels/fp8_runs.h"
#include "ops/quantize_grouped.h"

namespace braid {

/// The copy by columns of rows of experts (GroupedColumns): f8 [columns, P], scales f32
/// [P/128, columns].
template <class Element>
struct GroupedColumnsCopy {
  int64_t rows = 0;  ///< of the value
  int64_t columns = 0;
  Element* to = nullptr;
  float* scales = nullptr;
  int64_t* tally = nullptr;  ///< null: not wanted
};

/// One column: the blocks of all experts.
template <class Element, class ValueAt>
void write_column(const GroupedColumnsCopy<Element>& copy, const ExpertRanges& experts, int64_t c,
                  Fp8Count* losses, const ValueAt& value_at) {
  constexpr int64_t kBlock = GroupedColumns::kBlock;
  Element* const to = copy.to + c * GroupedColumns::width(copy.rows, experts.num_experts());
  for (int64_t e = 0; e < experts.num_experts(); ++e) {
    const ExpertRange mine = experts[e];
    const int64_t begin = GroupedColumns::begin(mine.begin, e);
    for (int64_t i = 0; i < mine.count; i += kBlock) {
      const int64_t size = std::min(kBlock, mine.count - i);
      round_run<Element>({.count = size,
                          .to = to + begin + i,
                          .scale = copy.scales + (begin + i) / kBlock * copy.columns + c},
                         losses, [&](int64_t k) { return value_at(mine.begin + i + k, c); });
      std::fill_n(to + begin + i + size, kBlock - size, Element());
    }
  }
}

/// value_at(r, c): an element of a row of an expert.
template <class Element, class ValueAt>
void write_columns(WorkerPool& workers, const GroupedColumnsCopy<Element>& copy,
                   const ExpertRanges& experts, const ValueAt& value_at) {
  round_all(workers, copy.tally, copy.columns, row_grain(experts.end()),
            [&](int64_t c, Fp8Count* losses) { write_column(copy, experts, c, losses, value_at); });
}

}  // namespace braid
