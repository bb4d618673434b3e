#include "ops/context_layout.h"

#include <numeric>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// y row i = x row `source(i)`, rows of one width.
template <class T, class Source>
void copy_rows(const KernelArgs& args, const Shape& shape, const Source& source) {
  const T* const x = args.data<const T>(0);
  T* const y = args.data<T>(1);
  const int64_t width = shape[1];
  run_pieces(args.workers, shape[0], row_grain(width), [&](int, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(x + source(row) * width, width, y + row * width);
    }
  });
}

/// Rows of ranks are [rank, sequence of the batch, half, token]; rows in order of position are
/// [sequence of the batch, chunk, token].
struct ZigzagRows {
  int64_t ranks = 1;
  int64_t half = 1;       // tokens of a chunk
  int64_t sequences = 1;  // of the batch

  int64_t held(int64_t ordered) const {
    const int64_t token = ordered % half;
    const int64_t chunk = ordered / half % (2 * ranks);
    const int64_t sequence = ordered / half / (2 * ranks);
    const bool is_second = chunk >= ranks;
    const int64_t rank = is_second ? 2 * ranks - 1 - chunk : chunk;
    return ((rank * sequences + sequence) * 2 + (is_second ? 1 : 0)) * half + token;
  }
  int64_t ordered(int64_t held) const {
    const int64_t token = held % half;
    const bool is_second = held / half % 2 == 1;
    const int64_t sequence = held / half / 2 % sequences;
    const int64_t rank = held / half / 2 / sequences;
    const int64_t chunk = is_second ? 2 * ranks - 1 - rank : rank;
    return (sequence * 2 * ranks + chunk) * half + token;
  }
};

/// Columns of one rank's block are its runs of all parts of a row.
template <class T>
void split_or_join(const SplitHeadsAttributes& a, int64_t rows, const KernelArgs& args) {
  const auto parts = a.parts();
  const int64_t width = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  const int64_t local_width = width / a.ranks;
  const T* const x = args.data<const T>(0);
  T* const y = args.data<T>(1);
  run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t rank = 0; rank < a.ranks; ++rank) {
        int64_t local = (rank * rows + row) * local_width;
        int64_t part = row * width;
        for (const int64_t columns : parts) {
          const int64_t count = columns / a.ranks;
          const int64_t whole = part + rank * count;
          std::copy_n(x + (a.inverse ? local : whole), count, y + (a.inverse ? whole : local));
          local += count;
          part += columns;
        }
      }
    }
  });
}

}  // namespace

CpuKernel make_pack_kv(const OpSpec& spec, int /*num_workers*/) {
  const Shape from = spec.operands[0].shape;
  const Shape to = spec.operands[1].shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const qkv = args.data<const T>(0) + from[1] - to[1];
      T* const kv = args.data<T>(1);
      run_pieces(args.workers, to[0], row_grain(to[1]), [&](int, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          std::copy_n(qkv + row * from[1], to[1], kv + row * to[1]);
        }
      });
    }};
  });
}

CpuKernel make_assemble_qkv(const OpSpec& spec, int /*num_workers*/) {
  const int64_t q_width = spec.operands[0].shape[1];
  const Shape shape = spec.operands[2].shape;
  return dispatch_dtype(spec, 2, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const int64_t width = shape[1];
      const auto* const d_q = args.data<const Wide<T>>(0);
      const auto* const d_kv = args.data<const Wide<T>>(1);
      T* const d_qkv = args.data<T>(2);
      run_pieces(args.workers, shape[0], row_grain(width), [&](int, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          T* const to = d_qkv + row * width;
          for (int64_t i = 0; i < q_width; ++i) {
            store(to, i, d_q[row * q_width + i]);
          }
          for (int64_t i = q_width; i < width; ++i) {
            store(to, i, d_kv[row * (width - q_width) + i - q_width]);
          }
        }
      });
    }};
  });
}

CpuKernel make_zigzag_order(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<ZigzagOrderAttributes>(spec);
  const Shape shape = spec.operands[0].shape;
  const ZigzagRows rows{.ranks = attributes.ranks,
                        .half = attributes.sequence / 2,
                        .sequences = shape[0] / (attributes.ranks * attributes.sequence)};
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      if (attributes.inverse) {
        copy_rows<T>(args, shape, [&](int64_t row) { return rows.ordered(row); });
      } else {
        copy_rows<T>(args, shape, [&](int64_t row) { return rows.held(row); });
      }
    }};
  });
}

CpuKernel make_split_heads(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<SplitHeadsAttributes>(spec);
  const int64_t rows = spec.operands[attributes.inverse ? 1 : 0].shape[0];
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) { split_or_join<T>(attributes, rows, args); }};
  });
}

CpuKernel make_swap_blocks(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<SwapBlocksAttributes>(spec);
  const Shape shape = spec.operands[0].shape;
  const int64_t block = shape[0] / (attributes.outer * attributes.inner);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      copy_rows<T>(args, shape, [&](int64_t row) {
        const int64_t i = row / block % attributes.outer;
        const int64_t j = row / block / attributes.outer;
        return (i * attributes.inner + j) * block + row % block;
      });
    }};
  });
}

}  // namespace braid
