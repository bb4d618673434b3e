// rows_to_blocks, blocks_to_rows: copies of rows between a member's x or y and a block for each
// other member. A block of threads first computes where rows lie: a table in shared memory, from
// the offsets of all members. Then each warp copies one row at a time.
#include "ops/row_blocks.h"

#include <limits>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/run_of.cuh"

namespace braid {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
/// A few per multiprocessor: each computes the table.
constexpr int64_t kMaxBlocks = 264;
/// Of experts times the members that share each: what the table in shared memory has room for.
constexpr int64_t kMaxRuns = 4095;

struct BlocksArgs {
  std::byte* rows = nullptr;
  std::byte* weights = nullptr;  // null: without weights
  std::byte* blocks = nullptr;
  const int32_t* offsets_of_all = nullptr;  // [members, experts + 1]
  int32_t* offsets = nullptr;               // [local experts + 1]; null: not wanted
  int64_t* tally = nullptr;                 // [RoomTally::kSize]; null: rows are not counted
  int64_t row_bytes = 0;
  int64_t block_bytes = 0;
  int64_t weights_at = 0;
  int member = 0;
  int members = 1;
  int experts = 1;
  int copies = 1;
  int local_experts = 1;
  int block_rows = 0;
  int sent_rows = 0;
  float dropped = 0;  // what a row that does not fit brings back: 0, or NaN

  /// Rows of a member before those of an expert. In a run that has failed there may be any numbers,
  /// so each result here and below is one that leads to memory of the operands.
  __device__ int32_t offset(int source, int expert) const {
    return min(max(offsets_of_all[source * (experts + 1) + expert], 0), sent_rows);
  }
  __device__ int first_expert(int holder) const { return holder / copies * local_experts; }

  /// Rows in the block from `source` to a holder before those of its local expert `local`.
  __device__ int32_t in_block(int source, int first, int local) const {
    return min(max(offset(source, first + local) - offset(source, first), 0), block_rows);
  }

  __device__ std::byte* row_in_block(int other, int32_t slot) const {
    return blocks + other * block_bytes + slot * row_bytes;
  }
  __device__ float* weight_in_block(int other, int32_t slot) const {
    return reinterpret_cast<float*>(blocks + other * block_bytes + weights_at) + slot;
  }
};

/// Runs of rows that are consecutive both in a block and in x or y. Run r is of a pair with member
/// r / runs_per_member.
struct Runs {
  int32_t* begin;  // [runs + 1]: rows of the runs before
  int32_t* row;    // [runs]: the first one's place in x or y
  int32_t* slot;   // [runs]: its place in its block
  int runs;
  int per_member;

  __device__ Runs(int32_t* shared, int members, int per_pair)
      : begin(shared),
        row(begin + members * per_pair + 1),
        slot(row + members * per_pair),
        runs(members * per_pair),
        per_member(per_pair) {}

  __device__ int member_of(int run) const { return run / per_member; }
};

/// Makes begins[0, count], which hold numbers of rows, their running sums from 0 on. All threads.
__device__ void sum_up(int32_t* begins, int count) {
  __syncthreads();
  if (threadIdx.x < kWarpSize) {
    int32_t before = 0;
    for (int first = 0; first < count; first += kWarpSize) {
      const int i = first + static_cast<int>(threadIdx.x);
      const int32_t own = i < count ? begins[i] : 0;
      int32_t sum = own;
      for (int step = 1; step < kWarpSize; step *= 2) {
        const int32_t left = __shfl_up_sync(~0u, sum, step);
        sum += static_cast<int>(threadIdx.x) >= step ? left : 0;
      }
      if (i < count) {
        begins[i] = before + sum - own;
      }
      before += __shfl_sync(~0u, sum, kWarpSize - 1);
    }
    if (threadIdx.x == 0) {
      begins[count] = before;
    }
  }
  __syncthreads();
}

/// A member's own rows for each other one: consecutive in both.
__device__ void find_own_runs(const BlocksArgs& args, const Runs& table) {
  for (int run = static_cast<int>(threadIdx.x); run < table.runs; run += kThreads) {
    const int first = args.first_expert(run);
    table.begin[run] = args.in_block(args.member, first, args.local_experts);
    table.row[run] = args.offset(args.member, first);
    table.slot[run] = 0;
  }
  sum_up(table.begin, table.runs);
}

/// The rows of experts that a member holds: a run per source and expert. In y those of an expert
/// are together, in a block those of a source.
__device__ void find_held_runs(const BlocksArgs& args, const Runs& table) {
  const int first = args.first_expert(args.member);
  for (int run = static_cast<int>(threadIdx.x); run < table.runs; run += kThreads) {
    const int source = table.member_of(run);
    const int local = run % args.local_experts;
    int32_t row = 0;
    for (int m = 0; m < args.members; ++m) {
      row += args.in_block(m, first, m < source ? local + 1 : local);
    }
    const int32_t slot = args.in_block(source, first, local);
    table.begin[run] = max(args.in_block(source, first, local + 1) - slot, 0);
    table.row[run] = row;
    table.slot[run] = slot;
  }
  sum_up(table.begin, table.runs);
}

/// Copies a row by the lanes of a warp, kInFlight vectors each at a time as long as there are as
/// many: the loads of a group come before its stores.
template <int kInFlight, class Word>
__device__ void copy_words(Word* to, const Word* from, int64_t words, int64_t& next) {
  for (; next + (kInFlight - 1) * kWarpSize < words; next += kInFlight * kWarpSize) {
    Word values[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      values[u] = from[next + u * kWarpSize];
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      to[next + u * kWarpSize] = values[u];
    }
  }
}

template <class Word>
__device__ void copy_row(std::byte* to, const std::byte* from, int64_t bytes) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
  int64_t next = threadIdx.x % kWarpSize;
  auto* const target = reinterpret_cast<Word*>(to);
  const auto* const source = reinterpret_cast<const Word*>(from);
  copy_words<8>(target, source, words, next);
  copy_words<4>(target, source, words, next);
  copy_words<1>(target, source, words, next);
}

/// One warp of all blocks takes each row.
template <class Visit>
__device__ void for_each_row(int32_t rows, const Visit& visit) {
  const auto warp =
      static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x) / kWarpSize;
  for (int32_t row = warp; row < rows; row += static_cast<int32_t>(gridDim.x) * kWarps) {
    visit(row);
  }
}

template <class Word, bool kPacks>
__device__ void copy_runs(const BlocksArgs& args, const Runs& table) {
  for_each_row(table.begin[table.runs], [&](int32_t i) {
    const int run = run_of(table.begin, table.runs, i);
    const int32_t in_run = i - table.begin[run];
    const int64_t row = table.row[run] + in_run;
    const int32_t slot = table.slot[run] + in_run;
    const int other = table.member_of(run);
    std::byte* const in_block = args.row_in_block(other, slot);
    std::byte* const in_rows = args.rows + row * args.row_bytes;
    copy_row<Word>(kPacks ? in_block : in_rows, kPacks ? in_rows : in_block, args.row_bytes);
    if (args.weights != nullptr && threadIdx.x % kWarpSize == 0) {
      float* const weight = reinterpret_cast<float*>(args.weights) + row;
      float* const weight_in_block = args.weight_in_block(other, slot);
      *(kPacks ? weight_in_block : weight) = *(kPacks ? weight : weight_in_block);
    }
  });
}

/// Ascending ones, whatever the members' offsets are.
__device__ void write_offsets(const BlocksArgs& args) {
  const int first = args.first_expert(args.member);
  for (int e = static_cast<int>(threadIdx.x); e <= args.local_experts; e += kThreads) {
    int32_t most = 0;
    for (int before = 0; before <= e; ++before) {
      int32_t begin = 0;
      for (int m = 0; m < args.members; ++m) {
        begin += args.in_block(m, first, before);
      }
      most = max(most, begin);
    }
    args.offsets[e] = most;
  }
}

/// One thread. The most rows of a pair count as if all pairs had as many.
__device__ void add_to_tally(const BlocksArgs& args, int64_t kept) {
  const int first = args.first_expert(args.member);
  int64_t came = 0;
  int64_t most_of_pair = 0;
  for (int m = 0; m < args.members; ++m) {
    const int64_t of_pair = args.offset(m, first + args.local_experts) - args.offset(m, first);
    came += of_pair;
    most_of_pair = max(most_of_pair, of_pair);
  }
  if (args.member % args.copies == 0) {
    args.tally[RoomTally::kRows] += came;
    args.tally[RoomTally::kDropped] += came - kept;
  }
  args.tally[RoomTally::kMost] =
      max(args.tally[RoomTally::kMost], max(came, most_of_pair * args.members));
  args.tally[RoomTally::kRoom] = int64_t{args.block_rows} * args.members;
  args.tally[RoomTally::kEqual] = int64_t{args.sent_rows} * args.copies;
}

template <class Word, bool kPacks>
__global__ void __launch_bounds__(kThreads) own_rows_kernel(const BlocksArgs args) {
  extern __shared__ int32_t shared[];
  const Runs table(shared, args.members, 1);
  find_own_runs(args, table);
  copy_runs<Word, kPacks>(args, table);
}

template <class Word, bool kPacks>
__global__ void __launch_bounds__(kThreads) held_rows_kernel(const BlocksArgs args) {
  extern __shared__ int32_t shared[];
  const Runs table(shared, args.members, args.local_experts);
  find_held_runs(args, table);
  if (blockIdx.x == 0) {
    if (args.offsets != nullptr) {
      write_offsets(args);
    }
    if (args.tally != nullptr && threadIdx.x == 0) {
      add_to_tally(args, table.begin[table.runs]);
    }
  }
  copy_runs<Word, kPacks>(args, table);
}

/// The sum over copies of a row in blocks from `holder` on, in f32 in their order, rounded once.
template <class T>
__device__ void sum_row(const BlocksArgs& args, std::byte* to, int holder, int32_t slot) {
  const int64_t width = args.row_bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t c = threadIdx.x % kWarpSize; c < width; c += kWarpSize) {
    float sum = 0;
    for (int i = 0; i < args.copies; ++i) {
      const float addend =
          widen(reinterpret_cast<const T*>(args.row_in_block(holder + i, slot))[c]);
      sum = i == 0 ? addend : sum + addend;
    }
    reinterpret_cast<T*>(to)[c] = narrow<T>(sum);
  }
}

template <class T>
__device__ void fill_row(const BlocksArgs& args, std::byte* to) {
  const int64_t width = args.row_bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t c = threadIdx.x % kWarpSize; c < width; c += kWarpSize) {
    reinterpret_cast<T*>(to)[c] = narrow<T>(args.dropped);
  }
}

/// A member's own rows come back: what all holders of their experts sent, added up.
template <class Word, class T>
__global__ void __launch_bounds__(kThreads) bring_back_kernel(const BlocksArgs args) {
  extern __shared__ int32_t shared[];
  int32_t* const begin = shared;  // [E+1]
  for (int e = static_cast<int>(threadIdx.x); e <= args.experts; e += kThreads) {
    begin[e] = args.offset(args.member, e);
  }
  __syncthreads();
  for_each_row(begin[args.experts], [&](int32_t row) {
    const int expert = run_of(begin, args.experts, row);
    const int first = expert / args.local_experts * args.local_experts;
    const int holder = expert / args.local_experts * args.copies;
    const int32_t slot = row - begin[first];
    const bool fits = slot >= 0 && slot < args.block_rows;
    std::byte* const to = args.rows + row * args.row_bytes;
    if (!fits) {
      fill_row<T>(args, to);
    } else if (args.copies > 1) {
      sum_row<T>(args, to, holder, slot);
    } else {
      copy_row<Word>(to, args.row_in_block(holder, slot), args.row_bytes);
    }
    if (args.weights != nullptr && threadIdx.x % kWarpSize == 0) {
      float sum = fits ? *args.weight_in_block(holder, slot) : args.dropped;
      for (int i = 1; fits && i < args.copies; ++i) {
        sum += *args.weight_in_block(holder + i, slot);
      }
      reinterpret_cast<float*>(args.weights)[row] = sum;
    }
  });
}

/// A launch of one of the kernels.
struct Launch {
  BlocksArgs args;
  DType dtype = DType::kBF16;
  bool packs = false;
  bool held = false;
  int64_t most_rows = 0;

  unsigned blocks() const {
    return grid_of(std::clamp<int64_t>(ceil_div(most_rows, kWarps), 1, kMaxBlocks));
  }
  size_t shared_bytes() const {
    const int runs = args.members * (held ? args.local_experts : 1);
    const int table = packs || held ? 3 * runs + 1 : args.experts + 1;
    return static_cast<size_t>(table) * sizeof(int32_t);
  }
};

template <class Word, class T>
void launch_as(const Launch& it, cudaStream_t stream) {
  const auto run = [&](auto* kernel) {
    kernel<<<it.blocks(), kThreads, it.shared_bytes(), stream>>>(it.args);
    BRAID_CUDA_CHECK(cudaGetLastError());
  };
  if (it.held) {
    return it.packs ? run(held_rows_kernel<Word, true>) : run(held_rows_kernel<Word, false>);
  }
  return it.packs ? run(own_rows_kernel<Word, true>) : run(bring_back_kernel<Word, T>);
}

/// By the largest words at whose multiples all rows begin.
template <class T>
void launch_of(const Launch& it, cudaStream_t stream) {
  check(all_aligned(sizeof(uint4), {it.args.blocks}), "blocks of rows are not aligned");
  const auto fits = [&](size_t bytes) {
    return it.args.row_bytes % static_cast<int64_t>(bytes) == 0 &&
           all_aligned(bytes, {it.args.rows});
  };
  if (fits(sizeof(uint4))) {
    launch_as<uint4, T>(it, stream);
  } else if (fits(sizeof(uint32_t))) {
    launch_as<uint32_t, T>(it, stream);
  } else {
    launch_as<uint16_t, T>(it, stream);
  }
}

BlocksArgs args_of(const RowBlocks& it, const CudaKernelArgs& args) {
  const RowBlockLayout layout = it.layout();
  return {.rows = args.operands[it.rows],
          .weights = it.attributes.has_weights ? args.operands[it.weights] : nullptr,
          .blocks = args.operands[it.blocks],
          .offsets_of_all = args.data<const int32_t>(it.offsets_of_all),
          .offsets = it.offsets != 0 ? args.data<int32_t>(it.offsets) : nullptr,
          .tally = it.tally != 0 ? args.data<int64_t>(it.tally) : nullptr,
          .row_bytes = it.row_bytes,
          .block_bytes = layout.bytes,
          .weights_at = layout.weights_at,
          .member = static_cast<int>(it.attributes.member),
          .members = static_cast<int>(it.members),
          .experts = static_cast<int>(it.attributes.experts),
          .copies = static_cast<int>(it.attributes.copies),
          .local_experts = static_cast<int>(it.local_experts),
          .block_rows = static_cast<int>(it.attributes.block_rows),
          .sent_rows = static_cast<int>(it.attributes.rows),
          .dropped = it.attributes.drops ? 0.0f : std::numeric_limits<float>::quiet_NaN()};
}

CudaKernel make_kernel(const OpSpec& spec) {
  const RowBlocks it(spec);
  const OperandSpec& rows = spec.operands[it.rows];
  check(it.attributes.experts * it.attributes.copies <= kMaxRuns,
        "op {}: {} experts on {} members each, at most {} together", spec.op, it.attributes.experts,
        it.attributes.copies, kMaxRuns);
  check(rows.dtype == DType::kBF16 || rows.dtype == DType::kF32,
        "op {}: no CUDA kernel exchanges rows of {}", spec.op, dtype_name(rows.dtype));
  return {
      .launch = [it, dtype = rows.dtype, most_rows = rows.shape[0]](const CudaKernelArgs& args) {
        const Launch launch{.args = args_of(it, args),
                            .dtype = dtype,
                            .packs = it.packs,
                            .held = it.attributes.held,
                            .most_rows = most_rows};
        if (dtype == DType::kBF16) {
          launch_of<Bf16>(launch, args.stream);
        } else {
          launch_of<float>(launch, args.stream);
        }
      }};
}

}  // namespace

CudaKernel make_cuda_rows_to_blocks(const OpSpec& spec, CudaContext& /*context*/) {
  return make_kernel(spec);
}

CudaKernel make_cuda_blocks_to_rows(const OpSpec& spec, CudaContext& /*context*/) {
  return make_kernel(spec);
}

}  // namespace braid
