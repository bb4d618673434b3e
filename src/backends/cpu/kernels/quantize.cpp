#include "ops/quantize.h"

#include <array>
#include <optional>

#include "backends/cpu/kernels/column_sums.h"
#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/fp8_tally.h"
#include "backends/cpu/kernels/main_weight.h"
#include "backends/cpu/kernels/support.h"
#include "base/float8.h"
#include "ops/attributes.h"

/// The definition of FP8 copies, bit for bit: other backends are compared with this one. Plain
/// loops over blocks, without regard to speed.
namespace braid {
namespace {

/// One copy [rows, depth] of x: x itself, or its transpose.
struct Copy {
  int64_t rows = 0;
  int64_t depth = 0;
  int64_t row_stride = 0;  // in x
  int64_t depth_stride = 0;
  ScaleLayout scales;
  DType format = DType::kF8E4M3;

  int64_t rows_per_block() const {
    return scales.block == 0 ? rows : scales.square ? scales.block : 1;
  }
  int64_t depth_per_block() const { return scales.block == 0 ? depth : scales.block; }
  int64_t row_blocks() const { return (rows + rows_per_block() - 1) / rows_per_block(); }
  int64_t depth_blocks() const { return (depth + depth_per_block() - 1) / depth_per_block(); }
};

struct BlockRange {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t depth_begin = 0;
  int64_t depth_end = 0;
};

BlockRange block_at(const Copy& copy, int64_t row_block, int64_t depth_block) {
  return {.row_begin = row_block * copy.rows_per_block(),
          .row_end = std::min(copy.rows, (row_block + 1) * copy.rows_per_block()),
          .depth_begin = depth_block * copy.depth_per_block(),
          .depth_end = std::min(copy.depth, (depth_block + 1) * copy.depth_per_block())};
}

template <class T>
uint32_t largest_magnitude(const Copy& copy, const T* x, const BlockRange& block) {
  uint32_t largest = 0;
  for (int64_t r = block.row_begin; r < block.row_end; ++r) {
    for (int64_t d = block.depth_begin; d < block.depth_end; ++d) {
      const float value = x[r * copy.row_stride + d * copy.depth_stride];
      largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7FFF'FFFFu);
    }
  }
  return largest;
}

template <class Element, class T>
void round_block(const Copy& copy, const T* x, const BlockRange& block, int exponent, Element* to) {
  const bool is_finite = exponent != Fp8Scale::kNotFinite;
  const float factor = is_finite ? Fp8Scale::to_float(-exponent) : 0.0F;
  for (int64_t r = block.row_begin; r < block.row_end; ++r) {
    for (int64_t d = block.depth_begin; d < block.depth_end; ++d) {
      const float value = x[r * copy.row_stride + d * copy.depth_stride];
      to[r * copy.depth + d] = is_finite ? Element(value * factor) : Element::from_bits(0x7F);
    }
  }
}

template <class Element, class T>
void count_block(const Copy& copy, const T* x, const BlockRange& block, int exponent,
                 const Element* to, Fp8Count& count) {
  const float factor = exponent == Fp8Scale::kNotFinite ? 0.0F : Fp8Scale::to_float(-exponent);
  for (int64_t r = block.row_begin; r < block.row_end; ++r) {
    for (int64_t d = block.depth_begin; d < block.depth_end; ++d) {
      count.add(x[r * copy.row_stride + d * copy.depth_stride], factor, to[r * copy.depth + d]);
    }
  }
}

void store_scale(const Copy& copy, const BlockRange& block, int exponent, std::byte* scales) {
  const ScaleLayout& layout = copy.scales;
  const Shape shape = layout.shape({copy.rows, copy.depth});
  const int64_t depth_block = block.depth_begin / copy.depth_per_block();
  const auto store = [&](int64_t at) {
    if (layout.dtype() == DType::kF8E8M0) {
      scales[at] = std::byte{Fp8Scale::to_e8m0(exponent)};
    } else {
      reinterpret_cast<float*>(scales)[at] = Fp8Scale::to_float(exponent);
    }
  };
  if (layout.block == 0) {
    store(0);
  } else if (layout.stores_squares()) {
    store(block.row_begin / layout.block * shape[1] + depth_block);
  } else {
    for (int64_t row = block.row_begin; row < block.row_end; ++row) {
      store(depth_block * shape[1] + row);
    }
  }
}

void zero_padding(const Copy& copy, std::byte* scales) {
  const int64_t bytes = copy.scales.shape({copy.rows, copy.depth}).num_elems() *
                        static_cast<int64_t>(dtype_bytes(copy.scales.dtype()));
  std::fill_n(scales, copy.scales.stores_squares() ? bytes : 0, std::byte{0});
}

/// `tally`: null: not wanted.
template <class Element, class T>
void write_copy(WorkerPool& workers, const Copy& copy, const T* x, Element* to, std::byte* scales,
                int64_t* tally) {
  zero_padding(copy, scales);
  const int64_t grain = row_grain(copy.depth * copy.rows_per_block());
  run_pieces(workers, copy.row_blocks(), grain, [&](int, int64_t begin, int64_t end) {
    Fp8Count count;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < copy.depth_blocks(); ++j) {
        const BlockRange block = block_at(copy, i, j);
        const int exponent = Fp8Scale::exponent_of(largest_magnitude(copy, x, block),
                                                   Fp8Scale::largest_exponent(copy.format));
        round_block(copy, x, block, exponent, to);
        store_scale(copy, block, exponent, scales);
        if (tally != nullptr) {
          count_block(copy, x, block, exponent, to, count);
        }
      }
    }
    if (tally != nullptr) {
      count.add_to(tally);
    }
  });
}

template <class T>
void write_copy(const KernelArgs& args, const T* x, const Copy& copy, int at, int tally_at) {
  const auto operand = static_cast<size_t>(at);
  auto* const scales = args.data<std::byte>(operand + 1);
  auto* const tally = tally_at < 0 ? nullptr : args.data<int64_t>(static_cast<size_t>(tally_at));
  if (copy.format == DType::kF8E5M2) {
    write_copy(args.workers, copy, x, args.data<Float8E5M2>(operand), scales, tally);
  } else {
    write_copy(args.workers, copy, x, args.data<Float8E4M3>(operand), scales, tally);
  }
}

/// Makes x in scratch, if it is the result of another op.
template <class T>
class Source {
 public:
  Source(const OpSpec& spec, int num_workers)
      : bytes_(align_scratch(static_cast<size_t>(quantized_value(spec).shape.num_elems()) *
                             sizeof(T))) {
    if (const std::optional<OpSpec> source = quantize_source(spec)) {
      kernel_ = make_cpu_kernel(*source, num_workers);
      num_operands_ = source->operands.size();
      result_ = find_op(source->op).source.result;
    }
  }

  size_t scratch_bytes() const {
    return num_operands_ == 0 ? 0 : bytes_ + align_scratch(kernel_.scratch_bytes);
  }

  /// x, which may lie at the beginning of scratch.
  const T* operator()(const KernelArgs& args) const {
    if (num_operands_ == 0) {
      return args.data<const T>(0);
    }
    std::byte* const x = args.scratch.data();
    std::array<std::byte*, kMostOperands> operands{};
    for (size_t i = 0; i < num_operands_; ++i) {
      operands[i] = i == result_ ? x : args.operands[i < result_ ? i : i - 1];
    }
    kernel_.run({{operands.data(), num_operands_}, args.scratch.subspan(bytes_), args.workers});
    return reinterpret_cast<const T*>(x);
  }

 private:
  static constexpr size_t kMostOperands = 8;

  CpuKernel kernel_;
  size_t num_operands_ = 0;  // of the source; 0: there is none
  size_t result_ = 0;        // x, among them
  size_t bytes_;             // of x
};

template <class T>
CpuKernel quantize_kernel(const OpSpec& spec, int num_workers) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  const QuantizeOperands at(attributes);
  const Source<T> source(spec, num_workers);
  const Shape shape = quantized_value(spec).shape;
  const int64_t rows = shape[0];
  const int64_t columns = shape[1];
  const auto format = [&](int operand) {
    return operand < 0 ? DType::kF8E4M3 : spec.operands[static_cast<size_t>(operand)].dtype;
  };
  const Copy row{.rows = rows,
                 .depth = columns,
                 .row_stride = columns,
                 .depth_stride = 1,
                 .scales = attributes.scales(),
                 .format = format(at.row)};
  const Copy column{.rows = columns,
                    .depth = rows,
                    .row_stride = 1,
                    .depth_stride = columns,
                    .scales = attributes.scales(),
                    .format = format(at.column)};
  const size_t sums_bytes = attributes.has_bias ? partial_sums_bytes<float>(rows, columns) : 0;
  return {.run =
              [=](const KernelArgs& args) {
                const T* const x = source(args);
                if (attributes.row) {
                  write_copy<T>(args, x, row, at.row, at.tally);
                }
                if (attributes.column) {
                  write_copy<T>(args, x, column, at.column, at.tally);
                }
                if (attributes.has_bias) {
                  std::byte* const sums = args.scratch.data() + source.scratch_bytes();
                  column_sums(args.workers, x, rows, columns, attributes.accumulate,
                              reinterpret_cast<float*>(sums),
                              args.data<float>(static_cast<size_t>(at.db)));
                }
              },
          .scratch_bytes = source.scratch_bytes() + sums_bytes};
}

}  // namespace

CpuKernel make_quantize(const OpSpec& spec, int num_workers) {
  if (attributes_of<QuantizeAttributes>(spec).rounds.main_weights) {
    return quantize_kernel<MainWeight>(spec, num_workers);
  }
  return spec.operands[0].dtype == DType::kF32 ? quantize_kernel<float>(spec, num_workers)
                                               : quantize_kernel<BFloat16>(spec, num_workers);
}

}  // namespace braid
