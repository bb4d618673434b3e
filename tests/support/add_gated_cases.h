#pragma once

#include "ops/add_gated.h"
#include "support/kernel_harness.h"

namespace braid {

struct GatedSizes {
  int64_t rows;
  int64_t width;
};

inline constexpr GatedSizes kAwkwardGatedSizes[] = {{1, 1}, {3, 5}, {64, 3}, {7, 700}};

inline KernelCase add_gated_case(DType dtype, const GatedSizes& s) {
  const Shape shape{s.rows, s.width};
  return KernelCase({"add_gated",
                     {},
                     {read(dtype, shape), read(dtype, shape), read(wide(dtype), {s.rows, 1}),
                      write(dtype, shape)}});
}

inline KernelCase add_gated_backward_case(DType dtype, const GatedSizes& s) {
  const Shape shape{s.rows, s.width};
  return KernelCase({"add_gated_backward",
                     {},
                     {read(dtype, shape), read(wide(dtype), {s.rows, 1}), read(dtype, shape),
                      write(dtype, shape), write(wide(dtype), {s.rows, 1})}});
}

}  // namespace braid
