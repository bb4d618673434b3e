#include "ops/embedding.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"

// A token outside the vocabulary cannot stop a step on the device, and must not access memory
// outside the table: its output row becomes NaN, which appears in the loss, and its gradient is
// dropped. The host checks tokens before it uploads them.
//
// embedding_wgrad sorts the row numbers by token (a stable radix sort). Then one block per distinct
// token and piece of a row adds the rows of that token in ascending order in fp32, as the CPU does:
// no atomics, bitwise repeatable.
namespace braid {
namespace {

constexpr int kUnroll = 4;
constexpr int kRowsInFlight = 4;
constexpr int kTokenThreads = 256;
constexpr int kWgradElems =
    4;  // per thread and row: 16 bytes of the gradient, which is most of the traffic

/// TokenPositions::of.
__device__ inline int64_t position_of(const TokenPositions& at, int64_t token) {
  return token < at.split ? at.first_begin + token : at.second_begin + token - at.split;
}

/// The position of row `row`; with documents, from the start of its own (ops/documents.h).
__device__ inline int64_t row_position(const TokenPositions& at, int64_t sequence,
                                       const int32_t* starts, int64_t row) {
  const int64_t position = position_of(at, row % sequence);
  return starts == nullptr ? position : position - starts[row];
}

/// The token of a sequence at a position; -1 if there is none.
__device__ inline int64_t token_at(const TokenPositions& at, int64_t position, int64_t sequence) {
  const int64_t in_first = position - at.first_begin;
  const int64_t in_second = position - at.second_begin;
  return in_first >= 0 && in_first < at.split                ? in_first
         : in_second >= 0 && in_second < sequence - at.split ? at.split + in_second
                                                             : -1;
}

template <class T>
struct EmbeddingArgs {
  const int32_t* tokens = nullptr;  // [N]
  const T* table = nullptr;         // [V,C]
  const T* positions = nullptr;     // [P,C] or null
  const int32_t* starts = nullptr;  // [N], of documents, or null
  T* out = nullptr;                 // [N,C]
  int64_t vocabulary = 0;           // number of tokens
  int64_t first_token = 0;          // with kPart: of the table's V rows
  int64_t table_rows = 0;           // with kPart: V
  int64_t width = 0;
  int64_t sequence = 0;
  TokenPositions at;
  unsigned chunks = 1;  // of a row
};

/// kPart: the table is a part of the vocabulary's; tokens of other rows give zeros.
template <bool kAligned, bool kPart, class T>
__global__ void __launch_bounds__(256) embedding_kernel(EmbeddingArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t row = blockIdx.x / args.chunks;
  const int64_t chunk = blockIdx.x % args.chunks;
  const int64_t first = (chunk * kUnroll * blockDim.x + threadIdx.x) * V;
  const int64_t token = args.tokens[row];
  const bool known = token >= 0 && token < args.vocabulary;
  bool here = known;
  int64_t table_row = token;
  if constexpr (kPart) {
    table_row -= args.first_token;
    here = known && table_row >= 0 && table_row < args.table_rows;
  }
  const T* const from = args.table + (here ? table_row : 0) * args.width;
  DeviceVector<T, V> value[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * V;
    if (c < args.width) {
      value[u] = load_vector<V, kAligned>(from + c, args.width - c);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t c = first + u * static_cast<int64_t>(blockDim.x) * V;
    if (c >= args.width) {
      continue;
    }
    if (kPart && !here) {
      value[u] = {};
    }
    if (args.positions != nullptr) {
      const auto position = load_vector<V, kAligned>(
          args.positions + row_position(args.at, args.sequence, args.starts, row) * args.width + c,
          args.width - c);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        value[u].elems[i] = narrow<T>(widen(value[u].elems[i]) + widen(position.elems[i]));
      }
    }
    if (!known) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        value[u].elems[i] = narrow<T>(NAN);
      }
    }
    store_vector<kAligned>(args.out + row * args.width + c, value[u], args.width - c);
  }
}

template <bool kPart, class T>
void launch_embedding(const EmbeddingArgs<T>& o, unsigned grid, unsigned threads,
                      cudaStream_t stream) {
  if (o.width % kVectorElems<T> == 0 && all_aligned(16, {o.table, o.positions, o.out})) {
    embedding_kernel<true, kPart><<<grid, threads, 0, stream>>>(o);
  } else {
    embedding_kernel<false, kPart><<<grid, threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class T>
CudaKernel embedding_kernel_of(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const TableRows table_rows(attributes.vocabulary, attributes.vocabulary_begin,
                             spec.operands[1].shape[0]);
  const bool adds_positions = attributes.has_positions && attributes.adds_positions;
  const bool documents = attributes.documents.documents;
  const size_t result = spec.operands.size() - 1;
  const int64_t width = spec.operands[1].shape[1];
  const RowChunks chunks(ceil_div(width, kVectorElems<T>), kUnroll);
  const unsigned grid = grid_of(rows * chunks.chunks);
  return {.launch = [=](const CudaKernelArgs& args) {
    const EmbeddingArgs<T> o{.tokens = args.data<const int32_t>(0),
                             .table = args.data<const T>(1),
                             .positions = adds_positions ? args.data<const T>(2) : nullptr,
                             .starts = documents ? args.data<const int32_t>(3) : nullptr,
                             .out = args.data<T>(result),
                             .vocabulary = table_rows.vocabulary,
                             .first_token = table_rows.begin,
                             .table_rows = table_rows.count,
                             .width = width,
                             .sequence = attributes.sequence,
                             .at = attributes.at,
                             .chunks = chunks.chunks};
    if (table_rows.is_whole()) {
      launch_embedding<false>(o, grid, chunks.threads, args.stream);
    } else {
      launch_embedding<true>(o, grid, chunks.threads, args.stream);
    }
  }};
}

/// sums += rows n, n + stride, ... of d_out, at columns c..c+V, `count` of them. `row_of(i)` is the
/// index of the i-th row.
template <bool kAligned, int V, class T, class RowOf>
__device__ void add_rows(const T* d_out, int64_t width, int64_t c, int64_t count, RowOf row_of,
                         DeviceVector<float, V>& sums) {
  for (int64_t begin = 0; begin < count; begin += kRowsInFlight) {
    DeviceVector<T, V> rows[kRowsInFlight];
#pragma unroll
    for (int u = 0; u < kRowsInFlight; ++u) {
      if (begin + u < count) {
        rows[u] = load_vector<V, kAligned>(d_out + row_of(begin + u) * width + c, width - c);
      }
    }
#pragma unroll
    for (int u = 0; u < kRowsInFlight; ++u) {
      if (begin + u < count) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          sums.elems[i] += widen(rows[u].elems[i]);
        }
      }
    }
  }
}

/// Row numbers by row of the table: `keys` ascending, `rows` ascending within a key; tokens that
/// are unknown, or another rank's, have the last key, V.
struct SortedTokens {
  const uint32_t* keys = nullptr;  // [N]
  const uint32_t* rows = nullptr;  // [N]
};

__global__ void __launch_bounds__(kTokenThreads)
    key_kernel(const int32_t* tokens, int64_t rows, TableRows table, uint32_t* keys,
               uint32_t* row_numbers) {
  const int64_t row = int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  if (row < rows) {
    const int64_t token = tokens[row];
    const int64_t key = token - table.begin;
    const bool here = token >= 0 && token < table.vocabulary && key >= 0 && key < table.count;
    keys[row] = static_cast<uint32_t>(here ? key : table.count);
    row_numbers[row] = static_cast<uint32_t>(row);
  }
}

/// The end of the rows of the token that starts at `first`. Most tokens have few rows, so it
/// searches with steps of 1, 2, 4, ..., then by bisection of the last step.
__device__ int64_t end_of_token(const uint32_t* keys, int64_t first, int64_t rows) {
  const uint32_t key = keys[first];
  int64_t last = first;  // known to belong to the token
  int64_t step = 1;
  while (last + step < rows && keys[last + step] == key) {
    last += step;
    step *= 2;
  }
  int64_t end = min(last + step, rows);  // known not to belong to it
  while (end - last > 1) {
    const int64_t middle = last + (end - last) / 2;
    (keys[middle] == key ? last : end) = middle;
  }
  return end;
}

/// Grad: float or Bf16.
template <class T, class Grad>
struct WgradArgs {
  const T* d_out = nullptr;  // [N,C]
  Grad* d_table = nullptr;   // [V,C]
  int64_t rows = 0;
  int64_t table_rows = 0;  // V
  int64_t width = 0;
  unsigned chunks = 1;  // of a row
  bool accumulate = false;
};

template <bool kAligned, class T, class Grad>
__global__ void __launch_bounds__(256)
    embedding_wgrad_kernel(WgradArgs<T, Grad> args, SortedTokens sorted) {
  constexpr int V = kWgradElems;
  const int64_t first = blockIdx.x / args.chunks;
  const int64_t c = (int64_t{blockIdx.x % args.chunks} * blockDim.x + threadIdx.x) * V;
  // Issues all loads before using any: most tokens have one row, so they then wait for memory only
  // once more, for table and first row.
  const uint32_t key = sorted.keys[first];
  const uint32_t key_before = sorted.keys[max(first - 1, int64_t{0})];
  const uint32_t key_behind = sorted.keys[min(first + 1, args.rows - 1)];
  const int64_t first_row = sorted.rows[first];
  const bool starts_token = first == 0 || key_before != key;
  if (!starts_token || key >= args.table_rows || c >= args.width) {
    return;
  }
  Grad* const to = args.d_table + key * args.width + c;
  DeviceVector<float, V> sums{};
  if (args.accumulate) {
    const auto before = load_vector<V, kAligned>(to, args.width - c);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums.elems[i] = widen(before.elems[i]);
    }
  }
  const auto row =
      load_vector<V, kAligned>(args.d_out + first_row * args.width + c, args.width - c);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums.elems[i] += widen(row.elems[i]);
  }
  if (first + 1 < args.rows && key_behind == key) {
    const int64_t end = end_of_token(sorted.keys, first + 1, args.rows);
    add_rows<kAligned>(
        args.d_out, args.width, c, end - first - 1,
        [&](int64_t i) { return static_cast<int64_t>(sorted.rows[first + 1 + i]); }, sums);
  }
  DeviceVector<Grad, V> rounded;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    rounded.elems[i] = narrow<Grad>(sums.elems[i]);
  }
  store_vector<kAligned>(to, rounded, args.width - c);
}

/// Offsets of the sort's arrays in scratch.
struct SortPlan {
  int64_t rows = 0;
  TableRows table;
  size_t array_bytes = 0;  // of one array of row numbers or keys
  size_t temporary_bytes = 0;

  SortPlan(int64_t num_rows, const TableRows& table_rows) : rows(num_rows), table(table_rows) {
    check(rows <= std::numeric_limits<int32_t>::max(), "embedding_wgrad of {} rows", rows);
    array_bytes = sort_array_bytes(rows);
    sort(nullptr, temporary_bytes, nullptr, nullptr);
  }

  size_t scratch_bytes() const { return 4 * array_bytes + temporary_bytes; }

  uint32_t* array(std::byte* scratch, size_t index) const {
    return reinterpret_cast<uint32_t*>(scratch + index * array_bytes);
  }

  void sort(void* temporary, size_t& bytes, std::byte* scratch, cudaStream_t stream) const {
    const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(table.count)));
    BRAID_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
        temporary, bytes, array(scratch, 0), array(scratch, 1), array(scratch, 2),
        array(scratch, 3), static_cast<int>(rows), 0, bits, stream));
  }

  SortedTokens launch(const int32_t* tokens, const CudaKernelArgs& args) const {
    key_kernel<<<grid_of(ceil_div(rows, kTokenThreads)), kTokenThreads, 0, args.stream>>>(
        tokens, rows, table, array(args.scratch, 0), array(args.scratch, 2));
    BRAID_CUDA_CHECK(cudaGetLastError());
    size_t bytes = temporary_bytes;
    sort(args.scratch + 4 * array_bytes, bytes, args.scratch, args.stream);
    return {.keys = array(args.scratch, 1), .rows = array(args.scratch, 3)};
  }
};

template <class T, class Grad>
CudaKernel embedding_wgrad_kernel_of(const OpSpec& spec) {
  const auto attributes = attributes_of<EmbeddingWgradAttributes>(spec);
  const bool accumulate = attributes.accumulate;
  const int64_t rows = spec.operands[0].shape[0];
  const TableRows table(attributes.vocabulary, attributes.vocabulary_begin,
                        spec.operands[2].shape[0]);
  const int64_t width = spec.operands[2].shape[1];
  const RowChunks chunks(ceil_div(width, kWgradElems), 1);
  const unsigned grid = grid_of(rows * chunks.chunks);
  const SortPlan plan(rows, table);
  const auto launch = [=](const CudaKernelArgs& args) {
    const WgradArgs<T, Grad> o{.d_out = args.data<const T>(1),
                               .d_table = args.data<Grad>(2),
                               .rows = rows,
                               .table_rows = table.count,
                               .width = width,
                               .chunks = chunks.chunks,
                               .accumulate = accumulate};
    if (!accumulate) {
      const auto bytes = static_cast<size_t>(table.count * width) * sizeof(Grad);
      BRAID_CUDA_CHECK(cudaMemsetAsync(o.d_table, 0, bytes, args.stream));
    }
    const SortedTokens sorted = plan.launch(args.data<const int32_t>(0), args);
    if (width % kWgradElems == 0 && all_aligned(16, {o.d_out, o.d_table})) {
      embedding_wgrad_kernel<true><<<grid, chunks.threads, 0, args.stream>>>(o, sorted);
    } else {
      embedding_wgrad_kernel<false><<<grid, chunks.threads, 0, args.stream>>>(o, sorted);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
  };
  return {.launch = launch, .scratch_bytes = plan.scratch_bytes()};
}

template <class T>
struct PositionWgradArgs {
  const T* d_out = nullptr;      // [N,C]
  float* d_positions = nullptr;  // f32 [P,C]
  int64_t rows = 0;              // N
  int64_t sequence = 0;
  TokenPositions at;
  int64_t width = 0;
  unsigned chunks = 1;  // of a row
  bool accumulate = false;
};

/// With `accumulate` the grid covers the tokens of a sequence, otherwise the rows of the table:
/// rows without a token become 0.
template <bool kAligned, class T>
__global__ void __launch_bounds__(256) position_wgrad_kernel(PositionWgradArgs<T> args) {
  constexpr int V = kWgradElems;
  const int64_t index = blockIdx.x / args.chunks;
  const int64_t position = args.accumulate ? position_of(args.at, index) : index;
  const int64_t token = args.accumulate ? index : token_at(args.at, index, args.sequence);
  const int64_t c = (int64_t{blockIdx.x % args.chunks} * blockDim.x + threadIdx.x) * V;
  if (c >= args.width) {
    return;
  }
  float* const to = args.d_positions + position * args.width + c;
  DeviceVector<float, V> sums{};
  if (args.accumulate) {
    sums = load_vector<V, kAligned>(to, args.width - c);
  }
  const int64_t count = token >= 0 ? args.rows / args.sequence : 0;
  add_rows<kAligned>(
      args.d_out, args.width, c, count, [&](int64_t i) { return token + i * args.sequence; }, sums);
  store_vector<kAligned>(to, sums, args.width - c);
}

/// With documents: a block adds the rows at its position, in their order. The grid covers the
/// table.
template <bool kAligned, class T>
__global__ void __launch_bounds__(256)
    document_position_wgrad_kernel(PositionWgradArgs<T> args, const int32_t* starts) {
  constexpr int V = kWgradElems;
  const int64_t position = blockIdx.x / args.chunks;
  const int64_t c = (int64_t{blockIdx.x % args.chunks} * blockDim.x + threadIdx.x) * V;
  if (c >= args.width) {
    return;
  }
  float* const to = args.d_positions + position * args.width + c;
  DeviceVector<float, V> sums{};
  if (args.accumulate) {
    sums = load_vector<V, kAligned>(to, args.width - c);
  }
  for (int64_t row = 0; row < args.rows; ++row) {
    if (row_position(args.at, args.sequence, starts, row) == position) {
      add_rows<kAligned>(
          args.d_out, args.width, c, 1, [row](int64_t) { return row; }, sums);
    }
  }
  store_vector<kAligned>(to, sums, args.width - c);
}

template <class T>
CudaKernel position_wgrad_kernel_of(const OpSpec& spec) {
  const auto attributes = attributes_of<PositionEmbeddingWgradAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const bool documents = attributes.documents.documents;
  const size_t result = documents ? 2 : 1;
  const int64_t width = spec.operands[result].shape[1];
  const RowChunks chunks(ceil_div(width, kWgradElems), 1);
  // Rows at positions without a token get no gradient: they are visited only to be overwritten.
  const int64_t positions =
      attributes.accumulate && !documents ? attributes.sequence : spec.operands[result].shape[0];
  const unsigned grid = grid_of(positions * chunks.chunks);
  return {.launch = [=](const CudaKernelArgs& args) {
    const PositionWgradArgs<T> o{.d_out = args.data<const T>(0),
                                 .d_positions = args.data<float>(result),
                                 .rows = rows,
                                 .sequence = attributes.sequence,
                                 .at = attributes.at,
                                 .width = width,
                                 .chunks = chunks.chunks,
                                 .accumulate = attributes.accumulate};
    const bool aligned = width % kWgradElems == 0 && all_aligned(16, {o.d_out, o.d_positions});
    if (documents) {
      const auto* const starts = args.data<const int32_t>(1);
      const auto kernel = aligned ? document_position_wgrad_kernel<true, T>
                                  : document_position_wgrad_kernel<false, T>;
      kernel<<<grid, chunks.threads, 0, args.stream>>>(o, starts);
    } else if (aligned) {
      position_wgrad_kernel<true><<<grid, chunks.threads, 0, args.stream>>>(o);
    } else {
      position_wgrad_kernel<false><<<grid, chunks.threads, 0, args.stream>>>(o);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace

CudaKernel make_cuda_embedding(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_dtype(spec, 1, [&]<class T>() { return embedding_kernel_of<T>(spec); });
}

CudaKernel make_cuda_embedding_wgrad(const OpSpec& spec, CudaContext& /*context*/) {
  if (spec.operands[2].dtype == DType::kBF16) {
    return embedding_wgrad_kernel_of<Bf16, Bf16>(spec);
  }
  return dispatch_cuda_dtype(spec, 1,
                             [&]<class T>() { return embedding_wgrad_kernel_of<T, float>(spec); });
}

CudaKernel make_cuda_position_embedding_wgrad(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() { return position_wgrad_kernel_of<T>(spec); });
}

}  // namespace braid
