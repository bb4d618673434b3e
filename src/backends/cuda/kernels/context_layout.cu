#include "ops/context_layout.h"

#include <numeric>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// Copies of runs of a row, with 16 bytes per thread and load if all runs begin and end at multiples
// of 16 bytes. A block per piece of a row of y; for each word of y, `source` gives its position in
// x. Rows and columns are counted in 32 bits, for faster division.
namespace braid {
namespace {

constexpr int kUnroll = 2;
constexpr int kThreads = 256;

/// All lengths below count words of some elements.
struct ShiftedColumns {
  int64_t row_words;  // of x
  int64_t first;      // column
  __device__ int64_t operator()(unsigned row, unsigned column) const {
    return row * row_words + first + column;
  }
};

/// Like ZigzagRows of the CPU's kernel: rows of ranks are [rank, sequence of the batch, half,
/// token], rows in order of position [sequence of the batch, chunk, token].
struct ZigzagRows {
  unsigned ranks;
  unsigned half;       // tokens of a chunk
  unsigned sequences;  // of the batch
  int64_t row_words;
  bool inverse;

  __device__ unsigned held(unsigned ordered) const {
    const unsigned token = ordered % half;
    const unsigned chunk = ordered / half % (2 * ranks);
    const unsigned sequence = ordered / half / (2 * ranks);
    const bool is_second = chunk >= ranks;
    const unsigned rank = is_second ? 2 * ranks - 1 - chunk : chunk;
    return ((rank * sequences + sequence) * 2 + (is_second ? 1 : 0)) * half + token;
  }
  __device__ unsigned ordered(unsigned held) const {
    const unsigned token = held % half;
    const bool is_second = held / half % 2 == 1;
    const unsigned sequence = held / half / 2 % sequences;
    const unsigned rank = held / half / 2 / sequences;
    const unsigned chunk = is_second ? 2 * ranks - 1 - rank : rank;
    return (sequence * 2 * ranks + chunk) * half + token;
  }
  __device__ int64_t operator()(unsigned row, unsigned column) const {
    return (inverse ? ordered(row) : held(row)) * row_words + column;
  }
};

struct SwappedBlocks {
  unsigned outer;
  unsigned inner;
  unsigned block;  // rows
  int64_t row_words;
  __device__ int64_t operator()(unsigned row, unsigned column) const {
    const unsigned i = row / block % outer;
    const unsigned j = row / block / outer;
    return ((i * inner + j) * block + row % block) * row_words + column;
  }
};

/// A row of all heads consists of kParts parts (queries, keys and values; or those of states), and
/// a row of one rank's heads of an equal run of each.
template <int kParts>
struct HeadParts {
  unsigned rows;  // of whole rows
  unsigned ranks;
  unsigned width;          // words of a rank
  unsigned words[kParts];  // of each of its runs

  /// The part that a column is in, and the words of a rank before it.
  struct Part {
    unsigned before;
    unsigned words;
  };
  /// `scale`: 1 for columns of a rank's row, `ranks` for those of a whole row.
  __device__ Part part_of(unsigned column, unsigned scale) const {
    Part part{0, words[0]};
#pragma unroll
    for (int i = 1; i < kParts; ++i) {
      const unsigned end = part.before + part.words;
      if (column >= scale * end) {
        part = {end, words[i]};
      }
    }
    return part;
  }
};

template <int kParts>
struct SplitRows : HeadParts<kParts> {
  __device__ int64_t operator()(unsigned row, unsigned column) const {
    const unsigned rank = row / this->rows;
    const auto part = this->part_of(column, 1);
    return int64_t{row % this->rows} * this->ranks * this->width + this->ranks * part.before +
           rank * part.words + column - part.before;
  }
};

template <int kParts>
struct JoinedRows : HeadParts<kParts> {
  __device__ int64_t operator()(unsigned row, unsigned column) const {
    const auto part = this->part_of(column, this->ranks);
    const unsigned in_part = column - this->ranks * part.before;
    const unsigned rank = in_part / part.words;
    return (int64_t{rank} * this->rows + row) * this->width + part.before + in_part % part.words;
  }
};

template <class Word, class Source>
__global__ void __launch_bounds__(kThreads)
    move_kernel(const Word* __restrict__ x, Word* __restrict__ y, unsigned row_words,
                unsigned chunks, Source source) {
  const unsigned row = blockIdx.x / chunks;
  const unsigned first = blockIdx.x % chunks * kUnroll * blockDim.x + threadIdx.x;
  Word words[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const unsigned column = first + u * blockDim.x;
    if (column < row_words) {
      words[u] = x[source(row, column)];
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const unsigned column = first + u * blockDim.x;
    if (column < row_words) {
      y[int64_t{row} * row_words + column] = words[u];
    }
  }
}

template <class Word, class Source>
void launch_move(const CudaKernelArgs& args, int64_t rows, int64_t row_words,
                 const Source& source) {
  const RowChunks chunks(row_words, kUnroll, kThreads);
  const unsigned grid = grid_of(rows * chunks.chunks);
  if (grid == 0) {
    return;
  }
  move_kernel<<<grid, chunks.threads, 0, args.stream>>>(
      args.data<const Word>(0), args.data<Word>(1), static_cast<unsigned>(row_words), chunks.chunks,
      source);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

/// x -> y, the operands of the spec. Runs begin and end at multiples of `run` elements.
/// make_source(n): the source with lengths in words of n elements.
template <class MakeSource>
CudaKernel move_rows(const OpSpec& spec, int64_t run, const MakeSource& make_source) {
  const Shape shape = spec.operands[1].shape;
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    constexpr int V = kVectorElems<T>;
    return {.launch = [=](const CudaKernelArgs& args) {
      if (run % V == 0 && all_aligned(16, {args.operands[0], args.operands[1]})) {
        launch_move<uint4>(args, shape[0], shape[1] / V, make_source(int64_t{V}));
      } else {
        launch_move<T>(args, shape[0], shape[1], make_source(int64_t{1}));
      }
    }};
  });
}

template <template <int> class Source, int kParts>
CudaKernel exchange_parts(const OpSpec& spec, const SplitHeadsAttributes& a) {
  const int64_t rows = spec.operands[a.inverse ? 1 : 0].shape[0];
  const auto parts = a.parts();
  int64_t run = 0;
  for (const int64_t columns : parts) {
    run = std::gcd(run, columns / a.ranks);
  }
  return move_rows(spec, run, [=, ranks = a.ranks](int64_t elems) {
    Source<kParts> source{};
    source.rows = static_cast<unsigned>(rows);
    source.ranks = static_cast<unsigned>(ranks);
    for (int i = 0; i < kParts; ++i) {
      source.words[i] = static_cast<unsigned>(parts[static_cast<size_t>(i)] / ranks / elems);
      source.width += source.words[i];
    }
    return source;
  });
}

template <template <int> class Source>
CudaKernel exchange_heads(const OpSpec& spec, const SplitHeadsAttributes& a) {
  return a.states.groups > 0 ? exchange_parts<Source, 5>(spec, a)
                             : exchange_parts<Source, 3>(spec, a);
}

template <class T>
struct AssembleArgs {
  const float* d_q = nullptr;   // [N,q_width]
  const float* d_kv = nullptr;  // [N,kv_width]
  T* d_qkv = nullptr;           // [N,q_width+kv_width]
  int64_t q_width = 0;
  int64_t kv_width = 0;
  unsigned chunks = 1;  // of a row of d_qkv
};

/// V elements at a time, of d_q or of d_kv.
template <int V, class T>
__global__ void __launch_bounds__(kThreads) assemble_kernel(AssembleArgs<T> args) {
  const int64_t row = blockIdx.x / args.chunks;
  const int64_t chunk = blockIdx.x % args.chunks;
  const int64_t width = args.q_width + args.kv_width;
  const int64_t first = (chunk * kUnroll * blockDim.x + threadIdx.x) * V;
  DeviceVector<float, V> from[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * V;
    if (c < width) {
      const float* const x = c < args.q_width ? args.d_q + row * args.q_width + c
                                              : args.d_kv + row * args.kv_width + c - args.q_width;
      from[u] = load_vector<V, (V > 1)>(x, V);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * V;
    if (c < width) {
      DeviceVector<T, V> rounded;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        rounded.elems[i] = narrow<T>(from[u].elems[i]);
      }
      store_vector<(V > 1)>(args.d_qkv + row * width + c, rounded, V);
    }
  }
}

template <int V, class T>
void launch_assemble(AssembleArgs<T> args, int64_t rows, cudaStream_t stream) {
  const RowChunks chunks((args.q_width + args.kv_width) / V, kUnroll, kThreads);
  args.chunks = chunks.chunks;
  const unsigned grid = grid_of(rows * chunks.chunks);
  if (grid == 0) {
    return;
  }
  assemble_kernel<V><<<grid, chunks.threads, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_pack_kv(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t from = spec.operands[0].shape[1];
  const int64_t to = spec.operands[1].shape[1];
  return move_rows(spec, std::gcd(from, to), [=](int64_t elems) {
    return ShiftedColumns{.row_words = from / elems, .first = (from - to) / elems};
  });
}

CudaKernel make_cuda_assemble_qkv(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t q_width = spec.operands[0].shape[1];
  const int64_t kv_width = spec.operands[1].shape[1];
  return dispatch_cuda_dtype(spec, 2, [=]<class T>() -> CudaKernel {
    constexpr int V = kVectorElems<T>;
    return {.launch = [=](const CudaKernelArgs& args) {
      const AssembleArgs<T> o{.d_q = args.data<const float>(0),
                              .d_kv = args.data<const float>(1),
                              .d_qkv = args.data<T>(2),
                              .q_width = q_width,
                              .kv_width = kv_width};
      if (q_width % V == 0 && kv_width % V == 0 && all_aligned(16, {o.d_q, o.d_kv, o.d_qkv})) {
        launch_assemble<V>(o, rows, args.stream);
      } else {
        launch_assemble<1>(o, rows, args.stream);
      }
    }};
  });
}

CudaKernel make_cuda_zigzag_order(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<ZigzagOrderAttributes>(spec);
  const Shape shape = spec.operands[0].shape;
  return move_rows(spec, shape[1], [=](int64_t elems) {
    return ZigzagRows{
        .ranks = static_cast<unsigned>(attributes.ranks),
        .half = static_cast<unsigned>(attributes.sequence / 2),
        .sequences = static_cast<unsigned>(shape[0] / (attributes.ranks * attributes.sequence)),
        .row_words = shape[1] / elems,
        .inverse = attributes.inverse};
  });
}

CudaKernel make_cuda_split_heads(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<SplitHeadsAttributes>(spec);
  return attributes.inverse ? exchange_heads<JoinedRows>(spec, attributes)
                            : exchange_heads<SplitRows>(spec, attributes);
}

CudaKernel make_cuda_swap_blocks(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<SwapBlocksAttributes>(spec);
  const Shape shape = spec.operands[0].shape;
  return move_rows(spec, shape[1], [=](int64_t elems) {
    return SwappedBlocks{
        .outer = static_cast<unsigned>(attributes.outer),
        .inner = static_cast<unsigned>(attributes.inner),
        .block = static_cast<unsigned>(shape[0] / (attributes.outer * attributes.inner)),
        .row_words = shape[1] / elems};
  });
}

}  // namespace braid
