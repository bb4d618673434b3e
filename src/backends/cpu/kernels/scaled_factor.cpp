#include "backends/cpu/kernels/scaled_factor.h"

#include <algorithm>
#include <array>

#include "backends/cpu/kernels/support.h"
#include "base/float8.h"

namespace braid {
namespace {

/// What `make` returns for each element of a format.
template <class Element, class Make>
auto table_of(const Make& make) {
  std::array<decltype(make(Element{})), 256> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = make(Element::from_bits(static_cast<uint8_t>(i)));
  }
  return table;
}

template <class Make>
const auto& table_of(bool is_e5m2, const Make& make) {
  static const auto kE4M3 = table_of<Float8E4M3>(make);
  static const auto kE5M2 = table_of<Float8E5M2>(make);
  return is_e5m2 ? kE5M2 : kE4M3;
}

/// to[i] = convert(element, scale).
template <class T, class Convert>
void convert_part(WorkerPool& workers, const ScaledFactor& factor, const FactorPart& part, T* to,
                  const Convert& convert) {
  const auto* const data = reinterpret_cast<const uint8_t*>(part.data);
  const ElemRange depth = part.depth;
  const int64_t run = factor.scales.block == 0 ? depth.size() : factor.scales.block;
  run_pieces(workers, part.rows.size(), row_grain(depth.size()),
             [&](int, int64_t first, int64_t last) {
               for (int64_t r = first; r < last; ++r) {
                 const uint8_t* const row = data + (part.rows.begin + r) * factor.depth;
                 T* const to_row = to + r * depth.size() - depth.begin;
                 for (int64_t d = depth.begin; d < depth.end; d += run) {
                   const float scale = factor.scale_at(part.scales, part.rows.begin + r, d);
                   for (int64_t i = d; i < std::min(depth.end, d + run); ++i) {
                     to_row[i] = convert(row[i], scale);
                   }
                 }
               }
             });
}

}  // namespace

ScaledFactor::ScaledFactor(const OpSpec& spec, size_t operand, const ScaleLayout& layout)
    : rows(spec.operands[operand].shape[0]),
      depth(spec.operands[operand].shape[1]),
      scales(layout),
      scale_stride(layout.block == 0 ? 0 : scales.shape(spec.operands[operand].shape)[1]),
      is_e5m2(spec.operands[operand].dtype == DType::kF8E5M2) {}

float ScaledFactor::scale_at(const std::byte* data, int64_t row, int64_t at) const {
  int64_t index = 0;
  if (scales.block != 0) {
    const int64_t along = at / scales.block;
    index = scales.square ? row / scales.block * scale_stride + along : along * scale_stride + row;
  }
  return scales.dtype() == DType::kF8E8M0
             ? Fp8Scale::from_e8m0(std::to_integer<uint8_t>(data[index]))
             : reinterpret_cast<const float*>(data)[index];
}

void widen(WorkerPool& workers, const ScaledFactor& factor, const FactorPart& part, float* to) {
  const auto& values =
      table_of(factor.is_e5m2, [](auto element) { return static_cast<float>(element); });
  convert_part(workers, factor, part, to,
               [&](uint8_t element, float scale) { return values[element] * scale; });
}

void split(WorkerPool& workers, const ScaledFactor& factor, const FactorPart& part,
           SplitNumber* to) {
  if (factor.scales.block == 32) {
    const auto& values =
        table_of(factor.is_e5m2, [](auto element) { return static_cast<float>(element); });
    convert_part(workers, factor, part, to, [&](uint8_t element, float scale) {
      return split_number(BFloat16(values[element] * scale));
    });
    return;
  }
  const auto& numbers =
      table_of(factor.is_e5m2, [](auto element) { return split_number(element); });
  convert_part(workers, factor, part, to,
               [&](uint8_t element, float /*scale*/) { return numbers[element]; });
}

}  // namespace braid
