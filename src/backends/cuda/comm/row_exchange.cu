// A block first computes where the rows of each expert go: a table in shared memory, from the
// offsets of all members. Then each warp moves one row at a time. Neighbouring warps take rows of
// different members' experts, each rank beginning with another member, so that no link has all
// traffic at once.
#include "backends/cuda/comm/row_exchange.h"

#include <algorithm>
#include <limits>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/vector_rows.cuh"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kVectorsInFlight = 8;  // of a thread
constexpr int kQuietNan = 0x7fc00000;

template <class T>
struct ExchangeArgs {
  const T* x = nullptr;            // of dispatch_rows: the rows that go out
  T* y = nullptr;                  // of combine_rows: where rows come back to
  const float* weights = nullptr;  // the same; null: without weights
  float* y_weights = nullptr;
  const int32_t* offsets_of_all = nullptr;  // [members, experts + 1]
  int32_t* offsets = nullptr;               // [local experts + 1]; null: not wanted
  int64_t width = 0;
  int member = 0;        // whose offsets are wanted
  int first_source = 0;  // the owner of rows is member first_source + blockIdx.y
  int members = 1;
  int experts = 1;
  int copies = 1;
  int local_experts = 1;
  int room = 0;
  bool drops = false;
  T* reached[kMaxRowExchangeMembers];
  float* reached_weights[kMaxRowExchangeMembers];
};

/// What a block knows of each expert, in shared memory.
struct ExpertTable {
  int32_t* begin;   // [E+1]: the owner's rows
  int32_t* start;   // [E]: the holder's row for the first of them
  int32_t* total;   // [E]: rows of all owners
  int32_t* before;  // [E]: of owners before this one

  __device__ ExpertTable(int32_t* shared, int experts)
      : begin(shared),
        start(begin + experts + 1),
        total(start + experts),
        before(total + experts) {}
};

constexpr size_t table_bytes(int64_t experts) {
  return sizeof(int32_t) * static_cast<size_t>(4 * experts + 1);
}

template <class T>
__device__ void count_rows(const ExchangeArgs<T>& args, int source, const ExpertTable& table) {
  const int row = args.experts + 1;
  for (int e = static_cast<int>(threadIdx.x); e < args.experts; e += kThreads) {
    int32_t total = 0;
    int32_t before = 0;
    for (int m = 0; m < args.members; ++m) {
      const int32_t* const of = args.offsets_of_all + m * row + e;
      const int32_t count = of[1] - of[0];
      total += count;
      before += m < source ? count : 0;
    }
    table.total[e] = total;
    table.before[e] = before;
    table.begin[e + 1] = args.offsets_of_all[source * row + e + 1];
  }
  if (threadIdx.x == 0) {
    table.begin[0] = args.offsets_of_all[source * row];
  }
  __syncthreads();
}

template <class T>
__device__ void place_rows(const ExchangeArgs<T>& args, const ExpertTable& table) {
  for (int e = static_cast<int>(threadIdx.x); e < args.experts; e += kThreads) {
    int32_t start = table.before[e];
    for (int other = e - e % args.local_experts; other < e; ++other) {
      start += table.total[other];
    }
    table.start[e] = start;
  }
  __syncthreads();
}

template <class T>
__device__ void write_offsets(const ExchangeArgs<T>& args, const ExpertTable& table) {
  const int first = args.member / args.copies * args.local_experts;
  for (int e = static_cast<int>(threadIdx.x); e <= args.local_experts; e += kThreads) {
    int32_t end = 0;
    for (int other = first; other < first + e; ++other) {
      end += table.total[other];
    }
    args.offsets[e] = min(end, args.room);
  }
}

/// Whether the holders of the expert have no room for all of their rows.
template <class T>
__device__ bool overflows(const ExchangeArgs<T>& args, const ExpertTable& table, int expert) {
  const int first = expert - expert % args.local_experts;
  int32_t needed = 0;
  for (int e = first; e < first + args.local_experts; ++e) {
    needed += table.total[e];
  }
  return needed > args.room;
}

/// The last expert that begins at or before the row.
__device__ int expert_of_row(const ExpertTable& table, int experts, int32_t row) {
  int low = 0;
  int high = experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.begin[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Calls visit(first, valid) for each group of a lane's vectors in a row: vector u of a group
/// begins kWarpSize vectors after vector u - 1.
template <class T, class Visit>
__device__ void for_each_group(int64_t width, Visit&& visit) {
  constexpr int V = kVectorElems<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int64_t first = int64_t{lane} * V; first < width;
       first += int64_t{kVectorsInFlight} * kWarpSize * V) {
    visit(first);
  }
}

/// The row of the owner goes to all `copies` members from `holder` on.
template <bool kAligned, class T>
__device__ void push_row(const ExchangeArgs<T>& args, int64_t row, int holder, int64_t held) {
  constexpr int V = kVectorElems<T>;
  const T* const from = args.x + row * args.width;
  for_each_group<T>(args.width, [&](int64_t first) {
    DeviceVector<T, V> values[kVectorsInFlight];
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u) {
      const int64_t c = first + int64_t{u} * kWarpSize * V;
      if (c < args.width) {
        values[u] = load_vector<V, kAligned>(from + c, args.width - c);
      }
    }
    for (int i = 0; i < args.copies; ++i) {
      T* const to = args.reached[holder + i];
#pragma unroll
      for (int u = 0; u < kVectorsInFlight; ++u) {
        const int64_t c = first + int64_t{u} * kWarpSize * V;
        if (c < args.width && to != nullptr) {
          store_vector<kAligned>(to + held * args.width + c, values[u], args.width - c);
        }
      }
    }
  });
}

/// The row comes back from a member.
template <bool kAligned, class T>
__device__ void pull_row(const ExchangeArgs<T>& args, int64_t row, const T* from) {
  constexpr int V = kVectorElems<T>;
  for_each_group<T>(args.width, [&](int64_t first) {
    DeviceVector<T, V> values[kVectorsInFlight];
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u) {
      const int64_t c = first + int64_t{u} * kWarpSize * V;
      values[u] = DeviceVector<T, V>{};
      if (c < args.width && from != nullptr) {
        values[u] = load_vector<V, kAligned>(from + c, args.width - c);
      }
    }
#pragma unroll
    for (int u = 0; u < kVectorsInFlight; ++u) {
      const int64_t c = first + int64_t{u} * kWarpSize * V;
      if (c < args.width) {
        store_vector<kAligned>(args.y + row * args.width + c, values[u], args.width - c);
      }
    }
  });
}

/// The sum of what `copies` members from `holder` on have, in f32 in their order, rounded once.
template <bool kAligned, class T>
__device__ void pull_sum(const ExchangeArgs<T>& args, int64_t row, int holder, int64_t held) {
  constexpr int V = kVectorElems<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int64_t c = int64_t{lane} * V; c < args.width; c += int64_t{kWarpSize} * V) {
    float sums[V];
    for (int i = 0; i < args.copies; ++i) {
      const auto addend = load_vector<V, kAligned>(args.reached[holder + i] + held * args.width + c,
                                                   args.width - c);
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
    store_vector<kAligned>(args.y + row * args.width + c, rounded, args.width - c);
  }
}

template <class T>
__device__ void push_weight(const ExchangeArgs<T>& args, const ExpertTable& table, int expert,
                            int64_t row, int holder, int64_t held) {
  const bool is_invalid = held == 0 && !args.drops && overflows(args, table, expert);
  const float weight = is_invalid ? __int_as_float(kQuietNan) : args.weights[row];
  for (int i = 0; i < args.copies; ++i) {
    if (args.reached_weights[holder + i] != nullptr) {
      args.reached_weights[holder + i][held] = weight;
    }
  }
}

template <class T>
__device__ void pull_weight(const ExchangeArgs<T>& args, int64_t row, int holder, int64_t held,
                            bool fits) {
  float sum = 0;
  for (int i = 0; fits && i < args.copies; ++i) {
    const float addend = args.reached_weights[holder + i][held];
    sum = i == 0 ? addend : sum + addend;
  }
  args.y_weights[row] = sum;
}

template <bool kDispatches, bool kAligned, class T>
__device__ void move_row(const ExchangeArgs<T>& args, const ExpertTable& table, int32_t row) {
  const int expert = expert_of_row(table, args.experts, row);
  const int holder = expert / args.local_experts * args.copies;
  const int64_t held = int64_t{table.start[expert]} + row - table.begin[expert];
  const bool fits = held < args.room;
  const bool is_first_lane = threadIdx.x % kWarpSize == 0;
  if constexpr (kDispatches) {
    if (fits) {
      push_row<kAligned>(args, row, holder, held);
    }
    if (fits && is_first_lane && args.weights != nullptr) {
      push_weight(args, table, expert, row, holder, held);
    }
  } else {
    if (fits && args.copies > 1) {
      pull_sum<kAligned>(args, row, holder, held);
    } else {
      pull_row<kAligned>(args, row, fits ? args.reached[holder] + held * args.width : nullptr);
    }
    if (is_first_lane && args.y_weights != nullptr) {
      pull_weight(args, row, holder, held, fits);
    }
  }
}

/// Grid: any number of blocks, owners.
template <bool kDispatches, bool kAligned, class T>
__global__ void __launch_bounds__(kThreads)
    exchange_kernel(const __grid_constant__ ExchangeArgs<T> args) {
  extern __shared__ int32_t shared[];
  const ExpertTable table(shared, args.experts);
  const int source = args.first_source + static_cast<int>(blockIdx.y);
  count_rows(args, source, table);
  place_rows(args, table);
  if (kDispatches && args.offsets != nullptr && blockIdx.x == 0 && blockIdx.y == 0) {
    write_offsets(args, table);
  }
  const int32_t rows = table.begin[args.experts];
  const int mixed = args.members / args.copies;
  const int32_t part = (rows + mixed - 1) / mixed;
  const int warp =
      static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  for (int32_t i = warp; i < part * mixed; i += static_cast<int32_t>(gridDim.x) * kWarps) {
    const int32_t row = (i + source) % mixed * part + i / mixed;
    if (row < rows) {
      move_row<kDispatches, kAligned>(args, table, row);
    }
  }
}

/// The owners of rows whose part is enqueued, and the blocks for each.
struct Owners {
  size_t first = 0;
  size_t count = 1;
  int blocks = kRowExchangeBlocks;
};

template <class T>
ExchangeArgs<T> args_of(const CommCall& call, size_t member, const ReachedRows& reached,
                        const Owners& owners) {
  const bool dispatches = call.op == CommOp::kDispatchRows;
  const auto members = static_cast<int64_t>(call.group->ranks.size());
  const RowExchange& rows = call.rows;
  ExchangeArgs<T> args;
  args.x = reinterpret_cast<const T*>(call.send);
  args.y = reinterpret_cast<T*>(call.recv);
  args.weights = reinterpret_cast<const float*>(rows.send_weights);
  args.y_weights = reinterpret_cast<float*>(rows.recv_weights);
  args.offsets_of_all = rows.offsets_of_all;
  args.offsets = rows.offsets;
  args.width = call.send_elems / rows.send_rows;
  args.member = static_cast<int>(member);
  args.first_source = static_cast<int>(owners.first);
  args.members = static_cast<int>(members);
  args.experts = static_cast<int>(rows.experts);
  args.copies = static_cast<int>(rows.copies);
  args.local_experts = static_cast<int>(rows.experts * rows.copies / members);
  args.room = static_cast<int>(dispatches ? rows.recv_rows : rows.send_rows);
  args.drops = rows.drops;
  for (size_t m = 0; m < reached.rows.size(); ++m) {
    args.reached[m] = reinterpret_cast<T*>(reached.rows[m]);
    args.reached_weights[m] =
        rows.has_weights ? reinterpret_cast<float*>(reached.weights[m]) : nullptr;
  }
  return args;
}

template <class T>
bool is_aligned(const ExchangeArgs<T>& args) {
  bool aligned = has_vectors<T>(args.width, {args.x, args.y});
  for (int m = 0; m < args.members; ++m) {
    aligned = aligned && all_aligned(16, {args.reached[m]});
  }
  return aligned;
}

template <class T>
void launch(const CommCall& call, const ExchangeArgs<T>& args, const Owners& owners,
            cudaStream_t stream) {
  const bool dispatches = call.op == CommOp::kDispatchRows;
  const auto kernel = [&] {
    if (is_aligned(args)) {
      return dispatches ? exchange_kernel<true, true, T> : exchange_kernel<false, true, T>;
    }
    return dispatches ? exchange_kernel<true, false, T> : exchange_kernel<false, false, T>;
  }();
  const dim3 grid(static_cast<unsigned>(owners.blocks), static_cast<unsigned>(owners.count));
  kernel<<<grid, kThreads, table_bytes(args.experts), stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void launch(const CommCall& call, size_t member, const ReachedRows& reached, const Owners& owners,
            cudaStream_t stream) {
  const size_t members = call.group->ranks.size();
  check(members <= kMaxRowExchangeMembers && reached.rows.size() == members,
        "{}: {} members, of which at most {} can exchange rows", call.what, members,
        kMaxRowExchangeMembers);
  check(call.rows.experts <= kMaxRowExchangeExperts, "{}: {} experts, at most {}", call.what,
        call.rows.experts, kMaxRowExchangeExperts);
  check(!call.rows.has_weights || call.rows.weight_dtype == DType::kF32, "{}: weights are not f32",
        call.what);
  if (call.dtype == DType::kBF16) {
    launch(call, args_of<Bf16>(call, member, reached, owners), owners, stream);
  } else if (call.dtype == DType::kF32) {
    launch(call, args_of<float>(call, member, reached, owners), owners, stream);
  } else {
    throw_internal_error("{}: no CUDA kernel exchanges rows of {}", call.what,
                         dtype_name(call.dtype));
  }
}

}  // namespace

void launch_row_exchange(const CommCall& call, size_t member, const ReachedRows& reached,
                         cudaStream_t stream, int blocks) {
  launch(call, member, reached, {.first = member, .count = 1, .blocks = blocks}, stream);
}

/// A dispatch gives this rank the rows of all owners, which go nowhere else.
void launch_emulated_row_exchange(const CommCall& call, size_t member, cudaStream_t stream) {
  const size_t members = call.group->ranks.size();
  const bool dispatches = call.op == CommOp::kDispatchRows;
  const auto reach = [&](const std::byte* own) {
    std::vector<std::byte*> reached(members, dispatches ? nullptr : const_cast<std::byte*>(own));
    reached[member] = const_cast<std::byte*>(own);
    return reached;
  };
  const ReachedRows reached{
      .rows = reach(dispatches ? call.recv : call.send),
      .weights = reach(dispatches ? call.rows.recv_weights : call.rows.send_weights)};
  const Owners owners = dispatches ? Owners{.first = 0, .count = members} : Owners{member, 1};
  launch(call, member, reached, owners, stream);
}

}  // namespace braid
