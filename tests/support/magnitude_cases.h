#pragma once

#include <cmath>
#include <vector>

#include "ops/attributes.h"
#include "ops/magnitude.h"
#include "support/adapter_cases.h"
#include "support/kernel_harness.h"

namespace braid {

/// A weight [sizes.width, in]; its adapters have rows where AdapterSizes has columns.
struct SquaresSizes {
  AdapterSizes adapters;
  int64_t in;
  int64_t rank;
};

/// Rows and columns that no block divides, then those that allow accesses of 16 bytes, and rows of
/// more elements than a block of a GPU takes at once.
inline const std::vector<SquaresSizes> kAwkwardSquares = {
    {{0, 1, {0}, {1}}, 1, 1},
    {{0, 23, {0, 14}, {11, 9}}, 37, 3},
    {{0, 70, {0, 1}, {35, 35}, 2}, 65, 5},
    {{0, 12, {1}, {6}, 2}, 33, 2},
    {{0, 112, {0, 64, 96}, {64, 32, 16}}, 64, 8},
    {{0, 20, {8}, {9}}, 4128, 4},
};

inline KernelCase adapted_squares_case(DType dtype, const SquaresSizes& s) {
  const AdapterSizes& of = s.adapters;
  AddAdaptersAttributes attributes{.scale = kAdapterScale, .step = of.step, .begin = of.begins[0]};
  attributes.second_begin = of.begins.size() > 1 ? of.begins[1] : 0;
  attributes.third_begin = of.begins.size() > 2 ? of.begins[2] : 0;
  const int64_t all_ranks = s.rank * std::ssize(of.sizes);
  OpSpec spec{"adapted_squares",
              to_attributes(AdaptedSquaresAttributes{attributes}),
              {read(dtype, {of.width, s.in}), read(dtype, {all_ranks, s.in})}};
  for (const int64_t size : of.sizes) {
    spec.operands.push_back(read(dtype, {size, s.rank}));
  }
  spec.operands.push_back(write(wide(dtype), {2, of.width}));
  return KernelCase(std::move(spec));
}

/// Squared lengths from 1 to 4; every third row has no adapter.
inline std::vector<double> some_squares(int64_t width) {
  std::vector<double> squares = TestRandom(5).uniforms(2 * width, 1.0, 4.0);
  for (int64_t row = 2; row < width; row += 3) {
    squares[static_cast<size_t>(row)] = 0;
    squares[static_cast<size_t>(width + row)] = 0;
  }
  return squares;
}

struct MagnitudeSizes {
  int64_t rows;
  int64_t width;
};

inline const std::vector<MagnitudeSizes> kAwkwardMagnitudes = {{1, 1},    {3, 5},     {33, 23},
                                                               {300, 70}, {257, 264}, {40, 520}};

inline KernelCase apply_magnitudes_case(DType dtype, const MagnitudeSizes& s,
                                        const ApplyMagnitudesAttributes& attributes = {}) {
  OpSpec spec{
      "apply_magnitudes",
      to_attributes(attributes),
      {read(dtype, {s.rows, s.width}), read(dtype, {s.width}), read(wide(dtype), {2, s.width})}};
  if (attributes.has_bias) {
    spec.operands.push_back(read(dtype, {s.width}));
  }
  spec.operands.push_back(write(dtype, {s.rows, s.width}));
  KernelCase made(std::move(spec));
  made.set(2, some_squares(s.width));
  return made;
}

inline KernelCase apply_magnitudes_backward_case(DType dtype, const MagnitudeSizes& s,
                                                 bool accumulate) {
  const OperandSpec rows = read(dtype, {s.rows, s.width});
  const OperandSpec sums =
      accumulate ? read_write(wide(dtype), {s.width}) : write(wide(dtype), {s.width});
  KernelCase made({"apply_magnitudes_backward",
                   to_attributes(ApplyMagnitudesBackwardAttributes{.accumulate = accumulate}),
                   {rows, read(dtype, {s.width}), read(wide(dtype), {2, s.width}), rows,
                    write(dtype, {s.rows, s.width}), sums}});
  made.set(2, some_squares(s.width));
  return made;
}

}  // namespace braid
