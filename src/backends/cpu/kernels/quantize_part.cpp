#include "ops/quantize_part.h"

#include <algorithm>
#include <bit>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/fp8_tally.h"
#include "backends/cpu/kernels/main_weight.h"
#include "backends/cpu/kernels/support.h"
#include "base/float8.h"
#include "ops/attributes.h"

/// The definition, with plain loops. Other backends are compared with it, and it with `quantize`.
namespace braid {
namespace {

/// Runs of elements of a part that lie in one row and one block.
class Runs {
 public:
  explicit Runs(const QuantizePartAttributes& weight)
      : weight_(weight),
        width_(weight.block == 0 ? weight.columns : weight.block),
        height_(weight.block == 0 ? weight.rows : weight.block),
        blocks_along_((weight.columns + width_ - 1) / width_) {}

  /// Calls visit(block, begin, end) for elements [begin, end) of the part.
  template <class Visit>
  void for_each(int64_t begin, int64_t end, const Visit& visit) const {
    while (begin < end) {
      const int64_t at = weight_.begin + begin;
      const int64_t row = at / weight_.columns;
      const int64_t column = at % weight_.columns;
      const int64_t block = column / width_;
      const int64_t rest = std::min((block + 1) * width_, weight_.columns) - column;
      const int64_t next = std::min(end, begin + rest);
      visit(row / height_ * blocks_along_ + block, begin, next);
      begin = next;
    }
  }

 private:
  QuantizePartAttributes weight_;
  int64_t width_;
  int64_t height_;
  int64_t blocks_along_;
};

template <class T>
CpuKernel part_magnitudes_kernel(const OpSpec& spec) {
  const Runs runs(attributes_of<QuantizePartAttributes>(spec));
  const int64_t count = spec.operands[0].shape[0];
  const int64_t num_blocks = spec.operands[1].shape.num_elems();
  return {.run = [=](const KernelArgs& args) {
    const T* const x = args.data<const T>(0);
    auto* const magnitudes = args.data<int32_t>(1);
    std::fill_n(magnitudes, num_blocks, 0);
    runs.for_each(0, count, [&](int64_t block, int64_t begin, int64_t end) {
      int32_t& largest = magnitudes[block];
      for (int64_t i = begin; i < end; ++i) {
        const auto value = static_cast<float>(x[i]);
        largest = std::max(largest, std::bit_cast<int32_t>(value) & 0x7FFF'FFFF);
      }
    });
  }};
}

template <class T>
CpuKernel quantize_part_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizePartAttributes>(spec);
  const Runs runs(attributes);
  const int64_t num_elems = spec.operands[0].shape[0];
  return {.run = [=, watch = attributes.watch.watch](const KernelArgs& args) {
    const T* const x = args.data<const T>(0);
    const auto* const magnitudes = args.data<const int32_t>(1);
    auto* const part = args.data<Float8E4M3>(2);
    const auto round_run = [&](int64_t block, int64_t begin, int64_t end, Fp8Count& count) {
      const int exponent = Fp8Scale::exponent_of(static_cast<uint32_t>(magnitudes[block]),
                                                 Fp8Scale::largest_exponent(DType::kF8E4M3));
      const bool is_finite = exponent != Fp8Scale::kNotFinite;
      const float factor = is_finite ? Fp8Scale::to_float(-exponent) : 0.0F;
      for (int64_t i = begin; i < end; ++i) {
        part[i] =
            is_finite ? Float8E4M3(static_cast<float>(x[i]) * factor) : Float8E4M3::from_bits(0x7F);
        if (watch) {
          count.add(static_cast<float>(x[i]), factor, part[i]);
        }
      }
    };
    run_pieces(args.workers, num_elems, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      Fp8Count count;
      runs.for_each(begin, end, [&](int64_t block, int64_t from, int64_t to) {
        round_run(block, from, to, count);
      });
      if (watch) {
        count.add_to(args.data<int64_t>(3));
      }
    });
  }};
}

/// Block [i, k] of a copy is block [i, k] of the weight, or block [k, i].
struct CopyBlocks {
  const int32_t* magnitudes;
  int64_t rows;
  int64_t along;
  bool transposed;

  CopyBlocks(const int32_t* of_weight, const Shape& blocks, bool is_column)
      : magnitudes(of_weight),
        rows(blocks[is_column ? 1 : 0]),
        along(blocks[is_column ? 0 : 1]),
        transposed(is_column) {}

  int exponent(int64_t i, int64_t k) const {
    const int64_t block = transposed ? k * rows + i : i * along + k;
    return Fp8Scale::exponent_of(static_cast<uint32_t>(magnitudes[block]),
                                 Fp8Scale::largest_exponent(DType::kF8E4M3));
  }
};

/// One scale for each block: [blocks, blocks along a row and padding].
void write_scales(const CopyBlocks& blocks, const Shape& shape, float* scales) {
  std::fill_n(scales, shape.num_elems(), 0.0F);
  for (int64_t i = 0; i < blocks.rows; ++i) {
    for (int64_t k = 0; k < blocks.along; ++k) {
      scales[i * (shape.num_elems() / blocks.rows) + k] = Fp8Scale::to_float(blocks.exponent(i, k));
    }
  }
}

/// One scale for each row of each block: [blocks along a row, rows].
void write_row_scales(const CopyBlocks& blocks, const Shape& shape, int64_t block,
                      std::byte* scales) {
  for (int64_t k = 0; k < blocks.along; ++k) {
    for (int64_t row = 0; row < shape[1]; ++row) {
      scales[k * shape[1] + row] = std::byte{Fp8Scale::to_e8m0(blocks.exponent(row / block, k))};
    }
  }
}

}  // namespace

CpuKernel make_part_magnitudes(const OpSpec& spec, int /*num_workers*/) {
  if (attributes_of<QuantizePartAttributes>(spec).rounds.main_weights) {
    return part_magnitudes_kernel<MainWeight>(spec);
  }
  return spec.operands[0].dtype == DType::kF32 ? part_magnitudes_kernel<float>(spec)
                                               : part_magnitudes_kernel<BFloat16>(spec);
}

CpuKernel make_quantize_part(const OpSpec& spec, int /*num_workers*/) {
  if (attributes_of<QuantizePartAttributes>(spec).rounds.main_weights) {
    return quantize_part_kernel<MainWeight>(spec);
  }
  return spec.operands[0].dtype == DType::kF32 ? quantize_part_kernel<float>(spec)
                                               : quantize_part_kernel<BFloat16>(spec);
}

CpuKernel make_scales_of_magnitudes(const OpSpec& spec, int /*num_workers*/) {
  const int64_t block = attributes_of<MagnitudeScalesAttributes>(spec).block;
  return {.run = [operands = spec.operands, block](const KernelArgs& args) {
    for (size_t copy = 1; copy < operands.size(); ++copy) {
      const Shape& shape = operands[copy].shape;
      const CopyBlocks blocks(args.data<const int32_t>(0), operands[0].shape, copy == 2);
      if (block == 32) {
        write_row_scales(blocks, shape, block, args.data<std::byte>(copy));
      } else {
        write_scales(blocks, shape, args.data<float>(copy));
      }
    }
  }};
}

}  // namespace braid
