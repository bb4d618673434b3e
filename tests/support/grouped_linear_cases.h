#pragma once

#include <limits>
#include <numeric>
#include <vector>

#include "ops/grouped_linear.h"
#include "support/kernel_harness.h"

/// Products of experts with their rows.
namespace braid {

/// Rows of each expert, sizes of their matrices, and rows of no expert after them.
struct Groups {
  std::vector<int64_t> counts;
  int64_t in;
  int64_t out;
  int64_t unused_rows = 0;

  int64_t num_experts() const { return static_cast<int64_t>(counts.size()); }
  int64_t used_rows() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
  int64_t rows() const { return used_rows() + unused_rows; }
  int64_t weights() const { return num_experts() * out; }
  std::vector<double> offsets() const {
    std::vector<double> list{0};
    for (const int64_t count : counts) {
      list.push_back(list.back() + static_cast<double>(count));
    }
    return list;
  }
};

// Empty experts at the begin, in the middle and at the end; all rows with one; a single expert.
inline const std::vector<Groups>& awkward_groups() {
  static const std::vector<Groups> list = {
      {{1}, 1, 1},       {{0, 5, 0, 0, 3, 1, 0}, 7, 3, 4}, {{0, 0, 13, 0}, 31, 17}, {{37}, 5, 9, 1},
      {{0, 0}, 3, 5, 2}, {{300, 1, 270, 65}, 530, 41, 3},  {{2, 3}, 4, 600}};
  return list;
}

/// The rows of no expert hold NaN.
inline void poison_unused(KernelCase& kernel, size_t operand, const Groups& g) {
  std::vector<double> values = kernel.values(operand);
  const auto width = static_cast<int64_t>(values.size()) / g.rows();
  std::fill(values.begin() + static_cast<ptrdiff_t>(g.used_rows() * width), values.end(),
            std::numeric_limits<double>::quiet_NaN());
  kernel.set(operand, values);
}

inline KernelCase grouped_linear_case(DType dtype, const Groups& g) {
  KernelCase kernel({"grouped_linear",
                     {},
                     {read(dtype, {g.rows(), g.in}), read(dtype, {g.weights(), g.in}),
                      read(DType::kI32, {g.num_experts() + 1}), write(dtype, {g.rows(), g.out})}});
  kernel.set(2, g.offsets());
  poison_unused(kernel, 0, g);
  return kernel;
}

inline KernelCase grouped_dgrad_case(DType dtype, const Groups& g) {
  KernelCase kernel({"grouped_linear_dgrad",
                     {},
                     {read(dtype, {g.rows(), g.out}), read(dtype, {g.weights(), g.in}),
                      read(DType::kI32, {g.num_experts() + 1}), write(dtype, {g.rows(), g.in})}});
  kernel.set(2, g.offsets());
  poison_unused(kernel, 0, g);
  return kernel;
}

inline KernelCase grouped_wgrad_case(DType dtype, const Groups& g, bool accumulate) {
  KernelCase kernel({"grouped_linear_wgrad",
                     to_attributes(GroupedWgradAttributes{.accumulate = accumulate}),
                     {read(dtype, {g.rows(), g.in}), read(dtype, {g.rows(), g.out}),
                      read(DType::kI32, {g.num_experts() + 1}),
                      gradient(accumulate, wide(dtype), {g.weights(), g.in})}});
  kernel.set(2, g.offsets());
  poison_unused(kernel, 0, g);
  poison_unused(kernel, 1, g);
  return kernel;
}

}  // namespace braid
