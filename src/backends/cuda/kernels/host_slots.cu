// One block of threads for each pair of this rank and a host, and for each direction: it goes
// through the tokens of one rank in their order, counts with a scan which of them have an expert of
// the other's host, and so finds their slots. All is in integers, so any order of execution gives
// the same result.
#include "ops/host_slots.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"
#include "ops/expert_exchange.h"
#include "ops/partial_maps.h"

namespace braid {
namespace {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;

struct SlotArgs {
  const int32_t* experts = nullptr;     // [H T, K]
  int32_t* slot_of = nullptr;           // [T, H]
  int32_t* token_of = nullptr;          // [S]
  int32_t* came_slot_of = nullptr;      // [H T]
  int32_t* came_token_of = nullptr;     // [S]
  int32_t* choices = nullptr;           // [S, K]
  unsigned long long* tally = nullptr;  // if tokens are counted
  int member = 0;
  int hosts = 1;
  int tokens = 1;
  int per_token = 1;
  int experts_of_host = 1;
  int block_rows = 1;
  int64_t rows = 1;     // of experts, for which there is room
  int32_t lacking = 0;  // the slot of a token without room
};

__device__ bool is_of_host(const SlotArgs& args, int32_t expert, int first) {
  return expert >= first && expert < first + args.experts_of_host;
}

/// How many threads before this one have `is_counted`; `total`: of all.
__device__ int count_before(bool is_counted, int32_t* shared, int& total) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned votes = __ballot_sync(0xffffffffu, is_counted);
  if (lane == 0) {
    shared[warp] = __popc(votes);
  }
  __syncthreads();
  int before = __popc(votes & ((1u << lane) - 1u));
  total = 0;
  for (int i = 0; i < kWarps; ++i) {
    before += i < warp ? shared[i] : 0;
    total += shared[i];
  }
  __syncthreads();
  return before;
}

__device__ int num_experts(const SlotArgs& args, int rank, int token, int first_expert) {
  const int32_t* const experts =
      args.experts + (int64_t{rank} * args.tokens + token) * args.per_token;
  int count = 0;
  for (int j = 0; j < args.per_token; ++j) {
    count += is_of_host(args, experts[j], first_expert) ? 1 : 0;
  }
  return count;
}

__device__ void count_dropped(const SlotArgs& args, int64_t pairs) {
  if (args.tally != nullptr && pairs > 0) {
    atomicAdd(args.tally + RoomTally::kRows, static_cast<unsigned long long>(pairs));
    atomicAdd(args.tally + RoomTally::kDropped, static_cast<unsigned long long>(pairs));
  }
}

/// The maps of one token, and what its experts are on this host.
__device__ void write_token(const SlotArgs& args, int host, bool comes, int token, int32_t slot) {
  const int slots = args.hosts * args.block_rows;
  if (!comes) {
    args.slot_of[token * args.hosts + host] = slot;
    if (slot < slots) {
      args.token_of[slot] = token * args.hosts + host;
    }
    return;
  }
  args.came_slot_of[host * args.tokens + token] = slot;
  if (slot >= slots) {
    return;
  }
  args.came_token_of[slot] = host * args.tokens + token;
  const int first = args.member * args.experts_of_host;
  const int32_t* const experts =
      args.experts + (int64_t{host} * args.tokens + token) * args.per_token;
  for (int j = 0; j < args.per_token; ++j) {
    args.choices[int64_t{slot} * args.per_token + j] =
        is_of_host(args, experts[j], first) ? experts[j] - first : args.experts_of_host;
  }
}

__device__ void write_empty_slot(const SlotArgs& args, bool comes, int slot) {
  (comes ? args.came_token_of : args.token_of)[slot] = args.tokens * args.hosts;
  for (int j = 0; comes && j < args.per_token; ++j) {
    args.choices[int64_t{slot} * args.per_token + j] = args.experts_of_host;
  }
}

__global__ void __launch_bounds__(kThreads) slots_kernel(SlotArgs args) {
  __shared__ int32_t shared[kWarps];
  const int host = static_cast<int>(blockIdx.x);
  const bool comes = blockIdx.y == 1;
  const int rank = comes ? host : args.member;
  const int first_expert = (comes ? args.member : host) * args.experts_of_host;
  const int first_slot = host * args.block_rows;
  int used = 0;
  for (int begin = 0; begin < args.tokens; begin += kThreads) {
    const int token = begin + static_cast<int>(threadIdx.x);
    const int count = token < args.tokens ? num_experts(args, rank, token, first_expert) : 0;
    const bool has_expert = count > 0;
    int total = 0;
    const int place = used + count_before(has_expert, shared, total);
    if (token < args.tokens) {
      const int32_t slot = !has_expert               ? args.hosts * args.block_rows + int{kNoRow}
                           : place < args.block_rows ? first_slot + place
                                                     : args.lacking;
      write_token(args, host, comes, token, slot);
      if (!comes && has_expert && place >= args.block_rows) {
        count_dropped(args, count);
      }
    }
    used += total;
  }
  if (args.tally != nullptr && !comes && threadIdx.x == 0) {
    const int64_t rows = (used * args.rows + args.block_rows - 1) / args.block_rows;
    atomicMax(args.tally + RoomTally::kMost, static_cast<unsigned long long>(rows));
  }
  for (int slot = used + static_cast<int>(threadIdx.x); slot < args.block_rows; slot += kThreads) {
    write_empty_slot(args, comes, first_slot + slot);
  }
}

/// One block of threads, behind the other kernel: counts the rows that came.
__global__ void __launch_bounds__(kThreads) count_came_kernel(SlotArgs args) {
  __shared__ int32_t shared[kWarps];
  const int64_t pairs = int64_t{args.hosts} * args.block_rows * args.per_token;
  int64_t came = 0;
  for (int64_t begin = 0; begin < pairs; begin += kThreads) {
    const int64_t pair = begin + threadIdx.x;
    int total = 0;
    count_before(pair < pairs && args.choices[pair] < args.experts_of_host, shared, total);
    came += total;
  }
  if (threadIdx.x == 0) {
    count_dropped(args, came - args.rows);
    atomicMax(args.tally + RoomTally::kMost, static_cast<unsigned long long>(came));
    args.tally[RoomTally::kRoom] = static_cast<unsigned long long>(args.rows);
    args.tally[RoomTally::kEqual] =
        static_cast<unsigned long long>(int64_t{args.tokens} * args.per_token);
  }
}

}  // namespace

CudaKernel make_cuda_host_slots(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<HostSlotsAttributes>(spec);
  const Shape& all = spec.operands[0].shape;
  const int64_t slots = attributes.hosts * attributes.block_rows;
  const SlotArgs sizes{
      .member = static_cast<int>(attributes.member),
      .hosts = static_cast<int>(attributes.hosts),
      .tokens = static_cast<int>(all[0] / attributes.hosts),
      .per_token = static_cast<int>(all[1]),
      .experts_of_host = static_cast<int>(attributes.experts / attributes.hosts),
      .block_rows = static_cast<int>(attributes.block_rows),
      .rows = attributes.rows,
      .lacking = static_cast<int32_t>(slots + (attributes.drops ? kNoRow : kLacksRoom))};
  const dim3 grid(grid_of(attributes.hosts), 2);
  return {.launch = [=, watch = attributes.watch.watch](const CudaKernelArgs& args) {
    SlotArgs o = sizes;
    o.experts = args.data<const int32_t>(0);
    o.slot_of = args.data<int32_t>(1);
    o.token_of = args.data<int32_t>(2);
    o.came_slot_of = args.data<int32_t>(3);
    o.came_token_of = args.data<int32_t>(4);
    o.choices = args.data<int32_t>(5);
    o.tally = watch ? args.data<unsigned long long>(6) : nullptr;
    slots_kernel<<<grid, kThreads, 0, args.stream>>>(o);
    if (watch) {
      count_came_kernel<<<1, kThreads, 0, args.stream>>>(o);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
