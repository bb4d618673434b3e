#pragma once

#include <vector>

#include "ops/adapter.h"
#include "ops/attributes.h"
#include "support/kernel_harness.h"

namespace braid {

/// A product of `width` features with adapters of so many columns each.
struct AdapterSizes {
  int64_t rows;
  int64_t width;
  std::vector<int64_t> begins;
  std::vector<int64_t> sizes;
  int64_t step = 1;
};

/// One matrix; two of three side by side; gate and up; a part of the width; then those whose
/// columns allow accesses of 16 bytes.
inline const std::vector<AdapterSizes> kAwkwardAdapters = {
    {1, 1, {0}, {1}},
    {3, 5, {0}, {5}},
    {7, 23, {0, 14}, {11, 9}},
    {5, 700, {0, 300, 513}, {300, 200, 187}},
    {9, 70, {0, 1}, {35, 35}, 2},
    {4, 12, {1}, {6}, 2},
    {5, 112, {0, 64, 96}, {64, 32, 16}},
    {3, 64, {8}, {24}},
    {4, 64, {1}, {32}, 2},
};
/// Rows of more columns than a block of a GPU takes at once.
inline const std::vector<AdapterSizes> kWideAdapters = {
    {2, 6144, {0, 4096, 5120}, {4096, 1024, 1024}},
    {3, 4128, {0, 1}, {2064, 2064}, 2},
};
inline constexpr double kAdapterScale = 1.75;

inline KernelCase add_adapters_case(DType dtype, const AdapterSizes& s) {
  AddAdaptersAttributes attributes{.scale = kAdapterScale, .step = s.step, .begin = s.begins[0]};
  attributes.second_begin = s.begins.size() > 1 ? s.begins[1] : 0;
  attributes.third_begin = s.begins.size() > 2 ? s.begins[2] : 0;
  OpSpec spec{"add_adapters", to_attributes(attributes), {read(dtype, {s.rows, s.width})}};
  for (const int64_t size : s.sizes) {
    spec.operands.push_back(read(dtype, {s.rows, size}));
  }
  spec.operands.push_back(write(dtype, {s.rows, s.width}));
  return KernelCase(std::move(spec));
}

/// Of the last adapter.
inline KernelCase adapter_grad_case(DType dtype, const AdapterSizes& s) {
  return KernelCase({"adapter_grad",
                     to_attributes(AdapterGradAttributes{
                         .scale = kAdapterScale, .step = s.step, .begin = s.begins.back()}),
                     {read(dtype, {s.rows, s.width}), write(dtype, {s.rows, s.sizes.back()})}});
}

}  // namespace braid
