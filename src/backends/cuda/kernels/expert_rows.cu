// sort_rows: a stable counting sort in three kernels. The first counts the experts of each piece of
// the pairs, the second adds up the pieces and the experts, the third places the pairs. All sums
// are of integers and a pair's row follows from its place alone, so any order of execution gives
// the same result. An expert that does not exist, which `route` never writes, counts as the last
// one. With limited room, pairs without an expert are counted as those of one more.
//
// The others have one block for each row or piece of a row; all accesses have 16 bytes per thread
// where rows are aligned.
#include "ops/expert_rows.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "backends/cuda/kernels/vector_rows.cuh"
#include "ops/attributes.h"
#include "ops/partial_maps.h"
#include "ops/quantize.h"

namespace braid {
namespace {

constexpr int kSortThreads = 256;
constexpr int kSortWarps = kSortThreads / kWarpSize;
constexpr int kWarpPairs = static_cast<int>(kSortPiecePairs) / kSortWarps;
constexpr int kPiecesInFlight = 8;
constexpr int kMaxExperts = 1024;  // threads of the second kernel, and what fits into shared memory
constexpr int kUnroll = 2;
constexpr int kRowsInFlight = 4;

struct SortArgs {
  const int32_t* experts = nullptr;  // [T K]
  int32_t* row_of = nullptr;         // [T K]
  int32_t* pair_of = nullptr;        // [R]
  int32_t* offsets = nullptr;        // [E+1]
  float* counts = nullptr;           // [E]
  int64_t* tally = nullptr;          // [E], if rows are counted
  int32_t* pieces = nullptr;         // [pieces, E]: pairs of an expert; then, in the pieces before
  int64_t num_pairs = 0;
  int64_t num_rows = 0;
  int num_pieces = 0;
  int num_experts = 0;
  int num_bins = 0;     // num_experts, and one more for pairs without an expert if there are such
  int32_t lacking = 0;  // the row of a pair without room
};

__device__ int expert_of(const SortArgs& args, int64_t pair) {
  const auto expert = static_cast<uint32_t>(args.experts[pair]);
  return static_cast<int>(min(expert, static_cast<uint32_t>(args.num_bins - 1)));
}

/// counts[warp][expert] of this block's piece; each warp has consecutive pairs.
__device__ void count_of_warps(const SortArgs& args, int32_t* counts) {
  for (int i = static_cast<int>(threadIdx.x); i < kSortWarps * args.num_bins; i += kSortThreads) {
    counts[i] = 0;
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t first = int64_t{blockIdx.x} * kSortPiecePairs + warp * kWarpPairs;
  for (int i = lane; i < kWarpPairs; i += kWarpSize) {
    if (first + i < args.num_pairs) {
      atomicAdd(&counts[warp * args.num_bins + expert_of(args, first + i)], 1);
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kSortThreads) count_kernel(SortArgs args) {
  extern __shared__ int32_t counts[];  // [kSortWarps, E]
  count_of_warps(args, counts);
  for (int e = static_cast<int>(threadIdx.x); e < args.num_bins; e += kSortThreads) {
    int32_t sum = 0;
    for (int warp = 0; warp < kSortWarps; ++warp) {
      sum += counts[warp * args.num_bins + e];
    }
    args.pieces[int64_t{blockIdx.x} * args.num_bins + e] = sum;
  }
}

/// Replaces the counts of an expert in each piece by those in the pieces before; returns their sum.
__device__ int32_t add_up_pieces(const SortArgs& args, int expert) {
  int32_t sum = 0;
  for (int first = 0; first < args.num_pieces; first += kPiecesInFlight) {
    int32_t counts[kPiecesInFlight];
#pragma unroll
    for (int u = 0; u < kPiecesInFlight; ++u) {
      counts[u] = first + u < args.num_pieces
                      ? args.pieces[int64_t{first + u} * args.num_bins + expert]
                      : 0;
    }
#pragma unroll
    for (int u = 0; u < kPiecesInFlight; ++u) {
      if (first + u < args.num_pieces) {
        args.pieces[int64_t{first + u} * args.num_bins + expert] = sum;
      }
      sum += counts[u];
    }
  }
  return sum;
}

/// One block with a thread for each expert.
__global__ void __launch_bounds__(kMaxExperts) add_up_kernel(SortArgs args) {
  __shared__ int32_t ends[kMaxExperts];
  const int e = static_cast<int>(threadIdx.x);
  const int32_t count = e < args.num_bins ? add_up_pieces(args, e) : 0;
  ends[e] = count;
  __syncthreads();
  for (int distance = 1; distance < static_cast<int>(blockDim.x); distance *= 2) {
    const int32_t before = e >= distance ? ends[e - distance] : 0;
    __syncthreads();
    ends[e] += before;
    __syncthreads();
  }
  if (e < args.num_experts) {
    args.offsets[e + 1] = static_cast<int32_t>(min(int64_t{ends[e]}, args.num_rows));
    args.counts[e] = static_cast<float>(count);
    if (args.tally != nullptr) {
      args.tally[e] += count;
    }
  }
  if (e == 0) {
    args.offsets[0] = 0;
  }
}

/// cursors[warp][expert]: the row of the warp's first pair of that expert.
__device__ void turn_into_cursors(const SortArgs& args, int32_t* cursors) {
  for (int e = static_cast<int>(threadIdx.x); e < args.num_bins; e += kSortThreads) {
    int32_t row = args.offsets[e] + args.pieces[int64_t{blockIdx.x} * args.num_bins + e];
    for (int warp = 0; warp < kSortWarps; ++warp) {
      int32_t& cursor = cursors[warp * args.num_bins + e];
      const int32_t count = cursor;
      cursor = row;
      row += count;
    }
  }
  __syncthreads();
}

__device__ void write_row(const SortArgs& args, int expert, int64_t pair, int32_t row) {
  if (expert == args.num_experts) {
    args.row_of[pair] = static_cast<int32_t>(args.num_rows + kNoRow);
  } else if (row >= args.num_rows) {
    args.row_of[pair] = args.lacking;
  } else {
    args.row_of[pair] = row;
    args.pair_of[row] = static_cast<int32_t>(pair);
  }
}

/// Each warp places its pairs in their order, 32 at a time. Rows of no pair are behind the last
/// offset.
__global__ void __launch_bounds__(kSortThreads) place_kernel(SortArgs args) {
  extern __shared__ int32_t shared[];  // [kSortWarps, E]
  count_of_warps(args, shared);
  turn_into_cursors(args, shared);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  int32_t* const cursors = shared + warp * args.num_bins;
  const int64_t first = int64_t{blockIdx.x} * kSortPiecePairs + warp * kWarpPairs;
  for (int i = lane; i < kWarpPairs; i += kWarpSize) {
    const int64_t pair = first + i;
    const bool is_pair = pair < args.num_pairs;
    const int expert = is_pair ? expert_of(args, pair) : -1;
    const unsigned same = __match_any_sync(0xffffffffu, expert);
    const int rank = __popc(same & ((1u << lane) - 1u));
    const int32_t row = is_pair ? cursors[expert] + rank : 0;
    __syncwarp();
    if (is_pair) {
      write_row(args, expert, pair, row);
      if (rank == 0) {
        cursors[expert] += __popc(same);
      }
    }
    __syncwarp();
  }
  const int64_t stride = int64_t{gridDim.x} * kSortThreads;
  for (int64_t row = args.offsets[args.num_experts] + int64_t{blockIdx.x} * kSortThreads +
                     static_cast<int64_t>(threadIdx.x);
       row < args.num_rows; row += stride) {
    args.pair_of[row] = static_cast<int32_t>(args.num_pairs);
  }
}

void launch_sort(const SortArgs& args, cudaStream_t stream) {
  const size_t shared_bytes = sizeof(int32_t) * kSortWarps * static_cast<size_t>(args.num_bins);
  const auto grid = static_cast<unsigned>(args.num_pieces);
  const auto threads =
      static_cast<unsigned>(ceil_div(args.num_bins, kWarpSize) * int64_t{kWarpSize});
  count_kernel<<<grid, kSortThreads, shared_bytes, stream>>>(args);
  add_up_kernel<<<1, threads, 0, stream>>>(args);
  place_kernel<<<grid, kSortThreads, shared_bytes, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class T>
struct GatherArgs {
  const T* x = nullptr;                  // [T, C]
  const int32_t* pair_of = nullptr;      // [R]
  const int32_t* end_of_rows = nullptr;  // rows from there on are nobody's; null: there are none
  T* y = nullptr;                        // [R, C]
  int64_t width = 0;
  int num_pairs = 0;  // rows of pairs from there on are nobody's
  int per_token = 1;
  unsigned chunks = 1;  // blocks of a row
};

template <bool kAligned, class T>
__global__ void __launch_bounds__(kRowThreads) gather_kernel(GatherArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t row = blockIdx.x / args.chunks;
  if ((args.end_of_rows != nullptr && row >= *args.end_of_rows) ||
      args.pair_of[row] >= args.num_pairs) {
    return;
  }
  const int64_t first =
      (int64_t{blockIdx.x % args.chunks} * kUnroll * blockDim.x + threadIdx.x) * V;
  const T* const from = args.x + int64_t{args.pair_of[row] / args.per_token} * args.width;
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
    if (c < args.width) {
      store_vector<kAligned>(args.y + row * args.width + c, value[u], args.width - c);
    }
  }
}

template <class T>
struct SumArgs {
  const T* x = nullptr;                  // [R, C]
  const int32_t* row_of = nullptr;       // [T, K]
  const int32_t* end_of_rows = nullptr;  // rows from there on are 0; null: there are none
  T* y = nullptr;                        // [T, C]
  int64_t width = 0;
  int32_t end = INT32_MAX;      // the same, known before
  int32_t lacking = INT32_MAX;  // this row is NaN
  int per_token = 1;
  unsigned chunks = 1;  // blocks of a row
};

/// sums += the columns of this thread in rows [j, j + kRowsInFlight) of a token, in their order.
template <bool kAligned, int V, class T>
__device__ void add_rows(const SumArgs<T>& args, const int32_t* row_of, int j, int64_t c,
                         DeviceVector<float, V>& sums) {
  const int32_t end = args.end_of_rows == nullptr ? args.end : *args.end_of_rows;
  DeviceVector<T, V> rows[kRowsInFlight];
  bool is_read[kRowsInFlight];
  bool lacks_room = false;
#pragma unroll
  for (int u = 0; u < kRowsInFlight; ++u) {
    is_read[u] = j + u < args.per_token && row_of[j + u] < end;
    lacks_room = lacks_room || (j + u < args.per_token && row_of[j + u] == args.lacking);
    if (is_read[u]) {
      rows[u] = load_vector<V, kAligned>(args.x + int64_t{row_of[j + u]} * args.width + c,
                                         args.width - c);
    }
  }
#pragma unroll
  for (int u = 0; u < kRowsInFlight; ++u) {
    if (is_read[u]) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sums.elems[i] += widen(rows[u].elems[i]);
      }
    }
  }
  if (lacks_room) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums.elems[i] = __int_as_float(0x7fffffff);  // NaN
    }
  }
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kRowThreads) sum_kernel(SumArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t token = blockIdx.x / args.chunks;
  const int64_t c = (int64_t{blockIdx.x % args.chunks} * blockDim.x + threadIdx.x) * V;
  if (c >= args.width) {
    return;
  }
  const int32_t* const row_of = args.row_of + token * args.per_token;
  DeviceVector<float, V> sums{};
  for (int j = 0; j < args.per_token; j += kRowsInFlight) {
    add_rows<kAligned>(args, row_of, j, c, sums);
  }
  DeviceVector<T, V> y;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    y.elems[i] = narrow<T>(sums.elems[i]);
  }
  store_vector<kAligned>(args.y + token * args.width + c, y, args.width - c);
}

constexpr int kPermuteThreads = 256;

template <class T>
struct PermuteArgs {
  const T* x = nullptr;
  const int32_t* order = nullptr;
  const int32_t* end_of_rows =
      nullptr;  // elements of rows from there on are 0; null: there are none
  T* y = nullptr;
  int64_t num_elems = 0;
  int num_sources = INT32_MAX;  // elements of x; there are none for larger numbers
  int lacking = INT32_MAX;      // of this one y is NaN
  bool x_is_of_rows = false;
};

template <class T>
__global__ void __launch_bounds__(kPermuteThreads) permute_kernel(PermuteArgs<T> args) {
  const int64_t i = int64_t{blockIdx.x} * kPermuteThreads + threadIdx.x;
  if (i >= args.num_elems) {
    return;
  }
  const int32_t from = args.order[i];
  const bool is_computed =
      from < args.num_sources &&
      (args.end_of_rows == nullptr || (args.x_is_of_rows ? from : i) < *args.end_of_rows);
  args.y[i] = is_computed ? args.x[from]
                          : narrow<T>(from == args.lacking ? __int_as_float(0x7fffffff) : 0.0f);
}

/// The activations of experts' rows, and what they read for each element of y.
struct RoutedSwiglu {
  template <class T>
  using Input = GateUp<T>;
  template <class T>
  using Forward = Swiglu<T>;
  template <class T>
  using Backward = SwigluBackward<T>;
};

struct RoutedRelu2 {
  template <class T>
  using Input = T;
  template <class T>
  using Forward = Relu2<T>;
  template <class T>
  using Backward = Relu2Backward<T>;
};

template <class Form, class T>
struct RoutedArgs {
  using Input = typename Form::template Input<T>;
  const Input* x = nullptr;           // [R, F]
  const float* weights = nullptr;     // [R]
  const int32_t* num_rows = nullptr;  // the last offset: rows from there on are nobody's
  const T* dy = nullptr;              // [R, F], backward only
  T* y = nullptr;                     // [R, F], forward only
  Input* dx = nullptr;                // [R, F], backward only
  float* d_weights = nullptr;         // [R], backward only
  int64_t width = 0;                  // F
};

/// One block per row.
template <bool kAligned, class Form, class T>
__global__ void __launch_bounds__(kRowThreads) routed_kernel(RoutedArgs<Form, T> args) {
  constexpr int V = kVectorElems<T>;
  if (static_cast<int>(blockIdx.x) >= *args.num_rows) {
    return;
  }
  const int64_t begin = int64_t{blockIdx.x} * args.width;
  const float weight = args.weights[blockIdx.x];
  for (int64_t c = int64_t{threadIdx.x} * V; c < args.width; c += int64_t{blockDim.x} * V) {
    const auto x = load_vector<V, kAligned>(args.x + begin + c, args.width - c);
    DeviceVector<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y.elems[i] = narrow<T>(weight * typename Form::template Forward<T>{}(widen(x.elems[i])));
    }
    store_vector<kAligned>(args.y + begin + c, y, args.width - c);
  }
}

/// One block per row, which adds up the gradient of its weight.
template <bool kAligned, class Form, class T>
__global__ void __launch_bounds__(kRowThreads) routed_backward_kernel(RoutedArgs<Form, T> args) {
  constexpr int V = kVectorElems<T>;
  using Input = typename Form::template Input<T>;
  __shared__ float shared[kWarpSize];
  if (static_cast<int>(blockIdx.x) >= *args.num_rows) {
    return;
  }
  const int64_t begin = int64_t{blockIdx.x} * args.width;
  const float weight = args.weights[blockIdx.x];
  float d_weight = 0.0f;
  for (int64_t c = int64_t{threadIdx.x} * V; c < args.width; c += int64_t{blockDim.x} * V) {
    const auto x = load_vector<V, kAligned>(args.x + begin + c, args.width - c);
    const auto dy = load_vector<V, kAligned>(args.dy + begin + c, args.width - c);
    DeviceVector<Input, V> dx;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const auto wide = widen(x.elems[i]);
      const float d = widen(dy.elems[i]);
      // Contracted by hand: aligned and other rows must have the same bits.
      d_weight = __fmaf_rn(d, typename Form::template Forward<T>{}(wide), d_weight);
      dx.elems[i] = narrow<Input>(typename Form::template Backward<T>{}(wide, weight * d));
    }
    store_vector<kAligned>(args.dx + begin + c, dx, args.width - c);
  }
  d_weight = block_sum(d_weight, shared);
  if (threadIdx.x == 0) {
    args.d_weights[blockIdx.x] = d_weight;
  }
}

template <class Form, class T>
void launch_routed(const RoutedArgs<Form, T>& o, unsigned rows, cudaStream_t stream) {
  const unsigned threads = threads_of_row<T>(o.width);
  if (has_vectors<T>(o.width, {o.x, o.y})) {
    routed_kernel<true><<<rows, threads, 0, stream>>>(o);
  } else {
    routed_kernel<false><<<rows, threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class Form, class T>
void launch_routed_backward(const RoutedArgs<Form, T>& o, unsigned rows, cudaStream_t stream) {
  const unsigned threads = threads_of_row<T>(o.width);
  if (has_vectors<T>(o.width, {o.x, o.dy, o.dx})) {
    routed_backward_kernel<true><<<rows, threads, 0, stream>>>(o);
  } else {
    routed_backward_kernel<false><<<rows, threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class Form>
CudaKernel make_routed(const OpSpec& spec) {
  const int64_t num_experts = spec.operands[2].shape[0] - 1;
  const unsigned rows = grid_of(spec.operands[3].shape[0]);
  const int64_t width = spec.operands[3].shape[1];
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      using Args = RoutedArgs<Form, T>;
      launch_routed(Args{.x = args.data<const typename Args::Input>(0),
                         .weights = args.data<const float>(1),
                         .num_rows = args.data<const int32_t>(2) + num_experts,
                         .y = args.data<T>(3),
                         .width = width},
                    rows, args.stream);
    }};
  });
}

template <class Form>
CudaKernel make_routed_backward(const OpSpec& spec) {
  const unsigned rows = grid_of(spec.operands[2].shape[0]);
  const int64_t width = spec.operands[2].shape[1];
  const int64_t num_experts = spec.operands[3].shape[0] - 1;
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      using Args = RoutedArgs<Form, T>;
      using Input = typename Args::Input;
      launch_routed_backward(Args{.x = args.data<const Input>(0),
                                  .weights = args.data<const float>(1),
                                  .num_rows = args.data<const int32_t>(3) + num_experts,
                                  .dy = args.data<const T>(2),
                                  .dx = args.data<Input>(4),
                                  .d_weights = args.data<float>(5),
                                  .width = width},
                             rows, args.stream);
    }};
  });
}

bool are_partial(const OpSpec& spec) {
  return attributes_of<MovedRowsAttributes>(spec).partial.are_partial();
}

/// Of partial maps, behind `num_rows` rows: the row that means that a pair lacks room.
int32_t lacking_row(const OpSpec& spec, int64_t num_rows) {
  return are_partial(spec) ? static_cast<int32_t>(num_rows + kLacksRoom) : INT32_MAX;
}

/// Where the rows that nobody computes begin: the last offset of an op that moves rows, if it has
/// offsets, behind its maps.
class EndOfRows {
 public:
  explicit EndOfRows(const OpSpec& spec)
      : num_experts_(attributes_of<MovedRowsAttributes>(spec).dropped.drops
                         ? spec.operands[3].shape[0] - 1
                         : 0) {}

  const int32_t* of(const CudaKernelArgs& args) const {
    return num_experts_ == 0 ? nullptr : args.data<const int32_t>(3) + num_experts_;
  }
  /// The operand y.
  size_t result() const { return num_experts_ == 0 ? 3 : 4; }

 private:
  int64_t num_experts_;
};

/// Rows of any type, which are moved as they are.
template <class T>
CudaKernel gather_of(const OpSpec& spec) {
  const int64_t width = spec.operands[0].shape[1];
  const RowChunks chunks(ceil_div(width, kVectorElems<T>), kUnroll, kRowThreads);
  const unsigned grid = grid_of(spec.operands[1].shape[0] * chunks.chunks);
  const GatherArgs<T> sizes{.width = width,
                            .num_pairs = static_cast<int>(spec.operands[2].shape.num_elems()),
                            .per_token = static_cast<int>(spec.operands[2].shape[1]),
                            .chunks = chunks.chunks};
  return {.launch = [=, end = EndOfRows(spec)](const CudaKernelArgs& args) {
    GatherArgs<T> o = sizes;
    o.x = args.data<const T>(0);
    o.pair_of = args.data<const int32_t>(1);
    o.end_of_rows = end.of(args);
    o.y = args.data<T>(end.result());
    if (has_vectors<T>(width, {o.x, o.y})) {
      gather_kernel<true><<<grid, chunks.threads, 0, args.stream>>>(o);
    } else {
      gather_kernel<false><<<grid, chunks.threads, 0, args.stream>>>(o);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace

CudaKernel make_cuda_sort_rows(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t num_pairs = spec.operands[0].shape.num_elems();
  const int64_t num_rows = spec.operands[2].shape[0];
  const int64_t num_experts = spec.operands[4].shape[0];
  const SortRoom room = attributes_of<SortRowsAttributes>(spec).room;
  const int64_t num_bins = num_experts + (room.is_limited ? 1 : 0);
  check(num_bins <= kMaxExperts, "sort_rows of {} experts, but a GPU sorts at most {}", num_experts,
        kMaxExperts - (room.is_limited ? 1 : 0));
  const int64_t num_pieces = sort_rows_pieces(num_pairs);
  return {.launch =
              [=, watch = has_tally(spec)](const CudaKernelArgs& args) {
                launch_sort({.experts = args.data<const int32_t>(0),
                             .row_of = args.data<int32_t>(1),
                             .pair_of = args.data<int32_t>(2),
                             .offsets = args.data<int32_t>(3),
                             .counts = args.data<float>(4),
                             .tally = watch ? args.data<int64_t>(5) : nullptr,
                             .pieces = reinterpret_cast<int32_t*>(args.scratch),
                             .num_pairs = num_pairs,
                             .num_rows = num_rows,
                             .num_pieces = static_cast<int>(num_pieces),
                             .num_experts = static_cast<int>(num_experts),
                             .num_bins = static_cast<int>(num_bins),
                             .lacking = static_cast<int32_t>(num_rows +
                                                             (room.drops ? kNoRow : kLacksRoom))},
                            args.stream);
              },
          .scratch_bytes = sort_rows_scratch_bytes(num_pairs, num_bins)};
}

CudaKernel make_cuda_gather_rows(const OpSpec& spec, CudaContext& /*context*/) {
  return is_fp8(spec.operands[0].dtype)
             ? gather_of<uint8_t>(spec)
             : dispatch_cuda_dtype(spec, 0, [&]<class T>() { return gather_of<T>(spec); });
}

CudaKernel make_cuda_sum_rows(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t width = spec.operands[0].shape[1];
  const int64_t tokens = spec.operands[1].shape[0];
  const auto per_token = static_cast<int>(spec.operands[1].shape[1]);
  const int64_t num_rows = spec.operands[0].shape[0];
  const int32_t end_of_all = are_partial(spec) ? static_cast<int32_t>(num_rows) : INT32_MAX;
  const int32_t lacking = lacking_row(spec, num_rows);
  return dispatch_cuda_dtype(spec, 0, [=, end = EndOfRows(spec)]<class T>() -> CudaKernel {
    const RowChunks chunks(ceil_div(width, kVectorElems<T>), 1, kRowThreads);
    const unsigned grid = grid_of(tokens * chunks.chunks);
    return {.launch = [=](const CudaKernelArgs& args) {
      const SumArgs<T> o{.x = args.data<const T>(0),
                         .row_of = args.data<const int32_t>(1),
                         .end_of_rows = end.of(args),
                         .y = args.data<T>(end.result()),
                         .width = width,
                         .end = end_of_all,
                         .lacking = lacking,
                         .per_token = per_token,
                         .chunks = chunks.chunks};
      if (has_vectors<T>(width, {o.x, o.y})) {
        sum_kernel<true><<<grid, chunks.threads, 0, args.stream>>>(o);
      } else {
        sum_kernel<false><<<grid, chunks.threads, 0, args.stream>>>(o);
      }
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

CudaKernel make_cuda_permute_elems(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t num_elems = spec.operands[1].shape.num_elems();
  const unsigned grid = grid_of(ceil_div(num_elems, int64_t{kPermuteThreads}));
  const bool x_is_of_rows = spec.operands[0].shape.rank() == 1;
  const int64_t num_sources = spec.operands[0].shape.num_elems();
  const int32_t lacking = x_is_of_rows ? lacking_row(spec, num_sources) : INT32_MAX;
  return dispatch_cuda_dtype(spec, 0, [=, end = EndOfRows(spec)]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      permute_kernel<<<grid, kPermuteThreads, 0, args.stream>>>(
          PermuteArgs<T>{.x = args.data<const T>(0),
                         .order = args.data<const int32_t>(1),
                         .end_of_rows = end.of(args),
                         .y = args.data<T>(end.result()),
                         .num_elems = num_elems,
                         .num_sources = static_cast<int>(num_sources),
                         .lacking = lacking,
                         .x_is_of_rows = x_is_of_rows});
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

CudaKernel make_cuda_routed_swiglu(const OpSpec& spec, CudaContext& /*context*/) {
  return make_routed<RoutedSwiglu>(spec);
}

CudaKernel make_cuda_routed_swiglu_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_routed_backward<RoutedSwiglu>(spec);
}

CudaKernel make_cuda_routed_relu2(const OpSpec& spec, CudaContext& /*context*/) {
  return make_routed<RoutedRelu2>(spec);
}

CudaKernel make_cuda_routed_relu2_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_routed_backward<RoutedRelu2>(spec);
}

}  // namespace braid
