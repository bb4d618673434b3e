#include "ops/drop_rows.h"

#include <cmath>
#include <functional>
#include <span>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"
#include "ops/expert_exchange.h"

namespace braid {
namespace {

/// Moves the pairs that an expert keeps to the front. Before and after, kept and dropped ones are
/// each in ascending order.
template <class W>
void keep_heaviest(std::span<int32_t> pairs, int64_t capacity, const W* weights) {
  const auto is_heavier = [weights](int32_t a, int32_t b) {
    const bool a_is_nan = std::isnan(weights[a]);
    if (a_is_nan != std::isnan(weights[b])) {
      return a_is_nan;
    }
    return a_is_nan || weights[a] == weights[b] ? a < b : weights[a] > weights[b];
  };
  const auto middle = pairs.begin() + capacity;
  std::nth_element(pairs.begin(), middle, pairs.end(), is_heavier);
  std::sort(pairs.begin(), middle);
  std::sort(middle, pairs.end());
}

/// Places the kept pairs of all experts one behind the other, and the dropped ones behind them.
class RowPlacer {
 public:
  RowPlacer(const int32_t* offsets, int64_t num_experts, int64_t capacity) : capacity_(capacity) {
    for (int64_t e = 0; e < num_experts; ++e) {
      first_dropped_ += std::min<int64_t>(capacity, offsets[e + 1] - offsets[e]);
    }
    next_dropped_ = first_dropped_;
  }

  /// Of the next expert, kept pairs first. Returns the end of its rows.
  int64_t place(std::span<const int32_t> pairs, int32_t* row_of, int32_t* pair_of) {
    for (int64_t i = 0; i < std::ssize(pairs); ++i) {
      int64_t& row = i < capacity_ ? next_kept_ : next_dropped_;
      const int32_t pair = pairs[static_cast<size_t>(i)];
      row_of[pair] = static_cast<int32_t>(row);
      pair_of[row++] = pair;
    }
    return next_kept_;
  }

  int64_t first_dropped() const { return first_dropped_; }

 private:
  int64_t capacity_;
  int64_t first_dropped_ = 0;
  int64_t next_kept_ = 0;
  int64_t next_dropped_ = 0;
};

void add_to_tally(const DropRowsAttributes& attributes, std::span<const int32_t> offsets,
                  int64_t num_kept, int64_t* tally) {
  const int64_t num_rows = offsets.back();
  const auto num_experts = std::ssize(offsets) - 1;
  tally[RoomTally::kRows] += num_rows;
  tally[RoomTally::kDropped] += num_rows - num_kept;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    tally[RoomTally::kMost] =
        std::max<int64_t>(tally[RoomTally::kMost], offsets[e + 1] - offsets[e]);
  }
  tally[RoomTally::kRoom] = attributes.capacity;
  tally[RoomTally::kEqual] = std::max<int64_t>(1, num_rows / num_experts);
}

template <class W>
CpuKernel drop_rows_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<DropRowsAttributes>(spec);
  const int64_t num_rows = spec.operands[2].shape[0];
  const int64_t num_experts = spec.operands[3].shape[0] - 1;
  const auto run = [=](const KernelArgs& args) {
    const W* const weights = args.data<const W>(0);
    const auto* const offsets = args.data<const int32_t>(3);
    auto* const kept_offsets = args.data<int32_t>(6);
    const std::span pairs(reinterpret_cast<int32_t*>(args.scratch.data()),
                          static_cast<size_t>(num_rows));
    std::copy_n(args.data<const int32_t>(2), num_rows, pairs.begin());
    RowPlacer placer(offsets, num_experts, attributes.capacity);
    kept_offsets[0] = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
      const std::span own = pairs.subspan(static_cast<size_t>(offsets[e]),
                                          static_cast<size_t>(offsets[e + 1] - offsets[e]));
      if (!attributes.by_position && std::ssize(own) > attributes.capacity) {
        keep_heaviest(own, attributes.capacity, weights);
      }
      kept_offsets[e + 1] =
          static_cast<int32_t>(placer.place(own, args.data<int32_t>(4), args.data<int32_t>(5)));
    }
    if (attributes.watch.watch) {
      add_to_tally(attributes, {offsets, static_cast<size_t>(num_experts + 1)},
                   placer.first_dropped(), args.data<int64_t>(7));
    }
  };
  return {.run = run, .scratch_bytes = static_cast<size_t>(num_rows) * sizeof(int32_t)};
}

}  // namespace

CpuKernel make_drop_rows(const OpSpec& spec, int /*num_workers*/) {
  return spec.operands[0].dtype == DType::kF64 ? drop_rows_kernel<double>(spec)
                                               : drop_rows_kernel<float>(spec);
}

}  // namespace braid
