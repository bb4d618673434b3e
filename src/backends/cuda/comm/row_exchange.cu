// A block first computes where rows come from: a table in shared memory, from the offsets of all
// members. Then each warp fetches one row at a time. Neighbouring warps fetch from different
// members, each rank beginning with another one, so that no link has all traffic at once.
#include "backends/cuda/comm/row_exchange.h"

#include <cstring>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/run_of.cuh"
#include "backends/cuda/kernels/vector_rows.cuh"
#include "base/errors.h"
#include "ops/expert_exchange.h"

namespace braid {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;

template <class T>
struct ExchangeArgs {
  T* y = nullptr;
  float* y_weights = nullptr;               // null: without weights
  const int32_t* offsets_of_all = nullptr;  // [members, experts + 1]
  int32_t* offsets = nullptr;               // [local experts + 1]; null: not wanted
  int64_t width = 0;
  int member = 0;
  int members = 1;
  int experts = 1;
  int copies = 1;
  int local_experts = 1;
  int room = 0;
  int sent_rows = 0;         // of x
  T dropped{};               // what elements of a row without room bring back: 0, or a NaN
  float dropped_weight = 0;  // the same of its weight
  int64_t* tally = nullptr;  // [RoomTally::kSize]; null: rows are not counted
  const volatile uint32_t* failed = nullptr;
  int scales_of_row = 0;  // 0: rows have none
  float* y_scales = nullptr;
  const T* x[kMaxRowExchangeMembers];
  const float* weights[kMaxRowExchangeMembers];
  const float* scales[kMaxRowExchangeMembers];

  /// Rows of a member before those of an expert.
  __device__ int32_t offset(int source, int expert) const {
    return offsets_of_all[source * (experts + 1) + expert];
  }
  __device__ int32_t count(int source, int expert) const {
    return offset(source, expert + 1) - offset(source, expert);
  }

  __device__ bool has_failed() const { return failed != nullptr && *failed != 0; }

  /// Where the rows of an expert that come from `source` begin on a member that holds it.
  __device__ int32_t held_begin(int source, int expert) const {
    const int first = expert - expert % local_experts;
    int32_t begin = 0;
    for (int m = 0; m < members; ++m) {
      begin += offset(m, expert) - offset(m, first) + (m < source ? count(m, expert) : 0);
    }
    return begin;
  }
};

/// Calls visit(row) for this warp's part of `rows` rows: consecutive warps have rows of different
/// ones of `parts` equal parts.
template <class Visit>
__device__ void for_each_row(int32_t rows, int parts, const Visit& visit) {
  const int32_t part = (rows + parts - 1) / parts;
  const int warp =
      static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  for (int32_t i = warp; i < part * parts; i += static_cast<int32_t>(gridDim.x) * kWarps) {
    const int32_t row = i % parts * part + i / parts;
    if (row < rows) {
      visit(row);
    }
  }
}

/// V elements of a row of any member. Unlike load_vector's, this load cannot move behind later
/// stores: the compiler does not know that other members' memory is not written here.
template <int V, bool kAligned, class T>
__device__ DeviceVector<T, V> load_from_member(const T* from, int64_t valid) {
  DeviceVector<T, V> vector;
  if constexpr (kAligned) {
    static_assert(sizeof(vector) == sizeof(uint4));
    const uint4 word = *reinterpret_cast<const uint4*>(from);
    memcpy(vector.elems, &word, sizeof(word));
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      vector.elems[i] = i < valid ? from[i] : T{};
    }
  }
  return vector;
}

/// Copies this lane's next vectors of a row, kInFlight at a time as long as there are as many. The
/// loads of a group come before its stores, so that all of them are in flight at once: with one at
/// a time a warp has half the rate.
template <int kInFlight, bool kAligned, class T>
__device__ void copy_vectors(T* to, const T* from, int64_t width, int64_t& next) {
  constexpr int V = kVectorElems<T>;
  constexpr int64_t kStride = int64_t{kWarpSize} * V;
  for (; next + (kInFlight - 1) * kStride < width; next += kInFlight * kStride) {
    DeviceVector<T, V> values[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t c = next + u * kStride;
      values[u] = load_from_member<V, kAligned>(from + c, width - c);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t c = next + u * kStride;
      store_vector<kAligned>(to + c, values[u], width - c);
    }
  }
}

template <bool kAligned, class T>
__device__ void copy_row(T* to, const T* from, int64_t width) {
  int64_t next = int64_t{threadIdx.x % kWarpSize} * kVectorElems<T>;
  copy_vectors<8, kAligned>(to, from, width, next);
  copy_vectors<4, kAligned>(to, from, width, next);
  copy_vectors<1, kAligned>(to, from, width, next);
}

template <class T>
__device__ void fill_row(T* to, T value, int64_t width) {
  for (int64_t c = threadIdx.x % kWarpSize; c < width; c += kWarpSize) {
    to[c] = value;
  }
}

/// The rows that this member gets, by source and local expert: first those of its own, then those
/// of the next member.
struct Runs {
  int32_t* begin;  // [runs + 1]: in this order
  int32_t* from;   // [runs]: the source's row
  int32_t* to;     // [runs]: of y

  __device__ Runs(int32_t* shared, int runs)
      : begin(shared), from(begin + runs + 1), to(from + runs) {}
};

template <class T>
__device__ int source_of(const ExchangeArgs<T>& args, int run) {
  return (args.member + run / args.local_experts) % args.members;
}

template <class T>
__device__ void find_runs(const ExchangeArgs<T>& args, const Runs& table) {
  const int runs = args.members * args.local_experts;
  const int first = args.member / args.copies * args.local_experts;
  for (int run = static_cast<int>(threadIdx.x); run <= runs; run += kThreads) {
    int32_t begin = 0;
    for (int k = 0; k < run / args.local_experts; ++k) {
      const int source = (args.member + k) % args.members;
      begin += args.offset(source, first + args.local_experts) - args.offset(source, first);
    }
    if (run < runs) {
      const int source = source_of(args, run);
      const int expert = first + run % args.local_experts;
      begin += args.offset(source, expert) - args.offset(source, first);
      table.from[run] = args.offset(source, expert);
      table.to[run] = args.held_begin(source, expert);
    }
    table.begin[run] = begin;
  }
  __syncthreads();
}

template <class T>
__device__ void write_offsets(const ExchangeArgs<T>& args, int32_t needed) {
  const int first = args.member / args.copies * args.local_experts;
  for (int e = static_cast<int>(threadIdx.x); e <= args.local_experts; e += kThreads) {
    const int32_t begin = e < args.local_experts ? args.held_begin(0, first + e) : needed;
    args.offsets[e] = min(begin, args.room);
  }
}

template <class T>
__device__ void write_no_rows(const ExchangeArgs<T>& args) {
  for (int e = static_cast<int>(threadIdx.x); e <= args.local_experts; e += kThreads) {
    args.offsets[e] = 0;
  }
}

/// One thread.
template <class T>
__device__ void add_to_tally(const ExchangeArgs<T>& args, int64_t came) {
  if (args.member % args.copies == 0) {
    args.tally[RoomTally::kRows] += came;
    args.tally[RoomTally::kDropped] += max(came - args.room, int64_t{0});
  }
  args.tally[RoomTally::kMost] = max(args.tally[RoomTally::kMost], came);
  args.tally[RoomTally::kRoom] = args.room;
  args.tally[RoomTally::kEqual] = int64_t{args.sent_rows} * args.copies;
}

/// The scales of a row of FP8: the first ones of each lane arrive while the row does.
class ScalesOfRow {
 public:
  template <class T>
  __device__ ScalesOfRow(const ExchangeArgs<T>& args, int source, int64_t row)
      : count_(args.scales_of_row),
        from_(count_ == 0 ? nullptr : args.scales[source] + row * count_),
        first_(lane() < count_ ? from_[lane()] : 0.0f) {}

  __device__ void store(float* to) const {
    if (lane() < count_) {
      to[lane()] = first_;
    }
    for (int i = lane() + kWarpSize; i < count_; i += kWarpSize) {
      to[i] = from_[i];
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }

  int count_;
  const float* from_;
  float first_;
};

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads)
    dispatch_kernel(const __grid_constant__ ExchangeArgs<T> args) {
  extern __shared__ int32_t shared[];
  if (args.has_failed()) {
    if (args.offsets != nullptr && blockIdx.x == 0) {
      write_no_rows(args);
    }
    return;
  }
  const int runs = args.members * args.local_experts;
  const Runs table(shared, runs);
  find_runs(args, table);
  const int32_t needed = table.begin[runs];
  if (args.offsets != nullptr && blockIdx.x == 0) {
    write_offsets(args, needed);
  }
  if (args.tally != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    add_to_tally(args, needed);
  }
  for_each_row(needed, args.members, [&](int32_t row) {
    const int run = run_of(table.begin, runs, row);
    const int source = source_of(args, run);
    const int64_t in_run = row - table.begin[run];
    const int64_t from = table.from[run] + in_run;
    const int64_t to = table.to[run] + in_run;
    if (to >= args.room) {
      return;
    }
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const bool has_weight = lane == 0 && args.y_weights != nullptr;
    const float weight =
        has_weight ? args.weights[source][from] : 0.0f;  // arrives while the row does
    const ScalesOfRow scales(args, source, from);
    copy_row<kAligned>(args.y + to * args.width, args.x[source] + from * args.width, args.width);
    if (has_weight) {
      args.y_weights[to] = weight;
    }
    scales.store(args.y_scales + to * args.scales_of_row);
  });
}

/// The sum of a row over `copies` members from `holder` on, in f32 in their order, rounded once.
template <bool kAligned, class T>
__device__ void sum_row(const ExchangeArgs<T>& args, T* to, int holder, int64_t held) {
  constexpr int V = kVectorElems<T>;
  const int64_t lane = threadIdx.x % kWarpSize;
  for (int64_t c = lane * V; c < args.width; c += int64_t{kWarpSize} * V) {
    float sums[V];
    for (int i = 0; i < args.copies; ++i) {
      const auto addend =
          load_vector<V, kAligned>(args.x[holder + i] + held * args.width + c, args.width - c);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        sums[v] = i == 0 ? widen(addend.elems[v]) : sums[v] + widen(addend.elems[v]);
      }
    }
    DeviceVector<T, V> rounded;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      rounded.elems[v] = narrow<T>(sums[v]);
    }
    store_vector<kAligned>(to + c, rounded, args.width - c);
  }
}

template <class T>
__device__ float sum_weights(const ExchangeArgs<T>& args, int holder, int64_t held) {
  float sum = args.weights[holder][held];
  for (int i = 1; i < args.copies; ++i) {
    sum += args.weights[holder + i][held];
  }
  return sum;
}

/// Row `row` of y, one of an expert's: from the members that hold it.
template <bool kAligned, class T>
__device__ void bring_back(const ExchangeArgs<T>& args, int32_t row, int expert, int64_t held) {
  const int holder = expert / args.local_experts * args.copies;
  const bool fits = held < args.room;  // else it was dropped
  T* const to = args.y + row * args.width;
  if (!fits) {
    fill_row(to, args.dropped, args.width);
  } else if (args.copies > 1) {
    sum_row<kAligned>(args, to, holder, held);
  } else {
    copy_row<kAligned>(to, args.x[holder] + held * args.width, args.width);
  }
  if (threadIdx.x % kWarpSize == 0 && args.y_weights != nullptr) {
    args.y_weights[row] = fits ? sum_weights(args, holder, held) : args.dropped_weight;
  }
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ ExchangeArgs<T> args) {
  extern __shared__ int32_t shared[];
  if (args.has_failed()) {
    return;
  }
  int32_t* const begin = shared;                   // [E+1]: this member's rows
  int32_t* const held = begin + args.experts + 1;  // [E]: where the first of them is held
  for (int e = static_cast<int>(threadIdx.x); e <= args.experts; e += kThreads) {
    begin[e] = args.offset(args.member, e);
    if (e < args.experts) {
      held[e] = args.held_begin(args.member, e);
    }
  }
  __syncthreads();
  const int32_t rows = begin[args.experts];
  const int holders = args.members / args.copies;
  const int32_t first = begin[args.member / args.copies * args.local_experts];  // own experts'
  for_each_row(rows, holders, [&](int32_t i) {
    const int32_t row = first + i < rows ? first + i : first + i - rows;
    const int expert = run_of(begin, args.experts, row);
    bring_back<kAligned>(args, row, expert, int64_t{held[expert]} + row - begin[expert]);
  });
}

template <class T>
ExchangeArgs<T> args_of(const CommCall& call, size_t member, const RowsOfMembers& from) {
  const auto members = static_cast<int64_t>(call.group->ranks.size());
  const RowExchange& rows = call.rows;
  ExchangeArgs<T> args;
  args.y = reinterpret_cast<T*>(call.recv);
  args.y_weights = reinterpret_cast<float*>(rows.recv_weights);
  args.offsets_of_all = rows.offsets_of_all;
  args.offsets = rows.offsets;
  args.width = call.send_elems / rows.send_rows * static_cast<int64_t>(dtype_bytes(call.dtype)) /
               static_cast<int64_t>(sizeof(T));
  args.member = static_cast<int>(member);
  args.members = static_cast<int>(members);
  args.experts = static_cast<int>(rows.experts);
  args.copies = static_cast<int>(rows.copies);
  args.local_experts = static_cast<int>(rows.experts * rows.copies / members);
  args.room = static_cast<int>(call.op == CommOp::kDispatchRows ? rows.recv_rows : rows.send_rows);
  args.sent_rows = static_cast<int>(rows.send_rows);
  // The NaN of the CPU (comm/row_exchange.cpp): all bits 1.
  std::memset(&args.dropped, rows.drops ? 0 : 0xFF, sizeof(T));
  std::memset(&args.dropped_weight, rows.drops ? 0 : 0xFF, sizeof(float));
  args.tally = rows.tally;
  args.failed = from.failed;
  args.scales_of_row = static_cast<int>(rows.scales_of_row);
  args.y_scales = reinterpret_cast<float*>(rows.recv_scales);
  for (size_t m = 0; m < from.rows.size(); ++m) {
    args.x[m] = reinterpret_cast<const T*>(from.rows[m]);
    args.weights[m] = rows.has_weights ? reinterpret_cast<const float*>(from.weights[m]) : nullptr;
    args.scales[m] =
        rows.scales_of_row > 0 ? reinterpret_cast<const float*>(from.scales[m]) : nullptr;
  }
  return args;
}

template <class T>
bool is_aligned(const ExchangeArgs<T>& args) {
  bool aligned = has_vectors<T>(args.width, {args.y});
  for (int m = 0; m < args.members; ++m) {
    aligned = aligned && all_aligned(16, {args.x[m]});
  }
  return aligned;
}

template <class T>
void launch(const CommCall& call, const ExchangeArgs<T>& args, int blocks, cudaStream_t stream) {
  const bool dispatches = call.op == CommOp::kDispatchRows;
  const auto kernel = [&] {
    if (is_aligned(args)) {
      return dispatches ? dispatch_kernel<true, T> : combine_kernel<true, T>;
    }
    return dispatches ? dispatch_kernel<false, T> : combine_kernel<false, T>;
  }();
  const int entries = dispatches ? 3 * args.members * args.local_experts + 1 : 2 * args.experts + 1;
  kernel<<<static_cast<unsigned>(blocks), kThreads, sizeof(int32_t) * static_cast<size_t>(entries),
           stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void check_limits(const CommCall& call, const RowsOfMembers& from) {
  const size_t members = call.group->ranks.size();
  const int64_t runs = call.rows.experts * call.rows.copies;
  check(members <= kMaxRowExchangeMembers && from.rows.size() == members,
        "{}: {} members, of which at most {} can exchange rows", call.what, members,
        kMaxRowExchangeMembers);
  check(runs <= kMaxRowExchangeRuns, "{}: {} experts on {} members each, at most {} together",
        call.what, call.rows.experts, call.rows.copies, kMaxRowExchangeRuns);
  check(!call.rows.has_weights || call.rows.weight_dtype == DType::kF32, "{}: weights are not f32",
        call.what);
}

}  // namespace

void launch_row_exchange(const CommCall& call, size_t member, const RowsOfMembers& members,
                         cudaStream_t stream, int blocks) {
  check_limits(call, members);
  blocks = blocks > 0 ? blocks : row_exchange_sms(*call.group);
  // Rows of FP8 are only copied, and have whole blocks of 128: pairs are words of 2 bytes.
  const bool is_copied = call.op == CommOp::kDispatchRows && call.rows.scales_of_row > 0;
  if (call.dtype == DType::kBF16 || is_copied) {
    launch(call, args_of<Bf16>(call, member, members), blocks, stream);
  } else if (call.dtype == DType::kF32) {
    launch(call, args_of<float>(call, member, members), blocks, stream);
  } else {
    throw_internal_error("{}: no CUDA kernel exchanges rows of {}", call.what,
                         dtype_name(call.dtype));
  }
}

void launch_emulated_row_exchange(const CommCall& call, size_t member, cudaStream_t stream) {
  const size_t members = call.group->ranks.size();
  const auto everywhere = [&](const std::byte* own) {
    return std::vector<const std::byte*>(members, own);
  };
  launch_row_exchange(call, member,
                      {.rows = everywhere(call.send),
                       .weights = everywhere(call.rows.send_weights),
                       .scales = everywhere(call.rows.send_scales)},
                      stream);
}

}  // namespace braid
