// On Hopper, products by quack-kernels whose tile scheduler reads the offsets on the device
// (sm90_products.h): the fastest tile for experts of equal sizes. Without these kernels, in f32,
// and for rows that are not whole vectors, a plain kernel: correct, and slow.
//
// The kernels by quack-kernels write fp32 weight gradients; bf16 ones are added up from these
// (wide_result.h).
//
// Both are bitwise repeatable: one multiprocessor adds up an element in the order of its depth, in
// fp32.
#include "ops/grouped_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/fastest_kernel.h"
#include "backends/cuda/kernels/fused_kernels.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "backends/cuda/kernels/sm90_products.h"
#include "backends/cuda/kernels/wide_result.h"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr int kTile = 64;       // rows and columns of a block
constexpr int kDepthStep = 16;  // elements of the depth in shared memory at a time
constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // rows and columns of a thread, at a distance of 16

/// The plain kernel's matrices: element (i, j) is at i * first + j * second.
template <class T>
struct Strided {
  T* data = nullptr;
  int64_t first = 0;
  int64_t second = 0;
};

/// c (+)= a b for each group: [m,k] [k,n], of which the groups divide m or k.
template <class T, class Out>
struct PlainArgs {
  Strided<const T> a;
  Strided<const T> b;
  Strided<Out> c;
  const int32_t* offsets = nullptr;  // [groups + 1]
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t group_elems = 0;  ///< of a matrix that each group has alone: b, or c if they divide k
  int num_groups = 0;
  bool accumulate = false;
};

/// The rows and the depth of a block's tile.
struct GroupTile {
  int group = 0;
  int64_t row = 0;
  int64_t row_end = 0;
  int64_t depth_begin = 0;
  int64_t depth_end = 0;
};

/// Tile `index` of all groups; beyond the last one it has no rows.
template <class T, class Out>
__device__ GroupTile tile_of_rows(const PlainArgs<T, Out>& args, int64_t index) {
  for (int g = 0; g < args.num_groups; ++g) {
    const int64_t begin = args.offsets[g];
    const int64_t end = args.offsets[g + 1];
    const int64_t tiles = (end - begin + kTile - 1) / kTile;
    if (index < tiles) {
      return {.group = g, .row = begin + index * kTile, .row_end = end, .depth_end = args.k};
    }
    index -= tiles;
  }
  return {};
}

template <class T, class Out>
__device__ GroupTile tile_of_depth(const PlainArgs<T, Out>& args, int64_t index) {
  return {.group = static_cast<int>(blockIdx.z),
          .row = index * kTile,
          .row_end = args.m,
          .depth_begin = args.offsets[blockIdx.z],
          .depth_end = args.offsets[blockIdx.z + 1]};
}

template <bool kDividesDepth, class T, class Out>
__global__ void __launch_bounds__(kThreads) plain_kernel(PlainArgs<T, Out> args) {
  __shared__ float a_tile[kDepthStep][kTile + 1];
  __shared__ float b_tile[kDepthStep][kTile + 1];
  const GroupTile tile =
      kDividesDepth ? tile_of_depth(args, blockIdx.y) : tile_of_rows(args, blockIdx.y);
  if (tile.row >= tile.row_end) {
    return;
  }
  const int64_t column = int64_t{blockIdx.x} * kTile;
  const int64_t own = tile.group * args.group_elems;
  const T* const b = args.b.data + (kDividesDepth ? 0 : own);
  Out* const c = args.c.data + (kDividesDepth ? own : 0);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 16;
  const int col = thread % 16;
  float sums[kPerThread][kPerThread] = {};
  for (int64_t k = tile.depth_begin; k < tile.depth_end; k += kDepthStep) {
    for (int i = thread; i < kDepthStep * kTile; i += kThreads) {
      const int line = i % kTile;
      const int64_t depth = k + i / kTile;
      const bool is_deep = depth < tile.depth_end;
      a_tile[i / kTile][line] =
          is_deep && tile.row + line < tile.row_end
              ? widen(args.a.data[(tile.row + line) * args.a.first + depth * args.a.second])
              : 0.0f;
      b_tile[i / kTile][line] =
          is_deep && column + line < args.n
              ? widen(b[depth * args.b.first + (column + line) * args.b.second])
              : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepthStep; ++d) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
          sums[i][j] = fmaf(a_tile[d][row + 16 * i], b_tile[d][col + 16 * j], sums[i][j]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t to_row = tile.row + row + 16 * i;
      const int64_t to_column = column + col + 16 * j;
      if (to_row < tile.row_end && to_column < args.n) {
        Out& to = c[to_row * args.c.first + to_column * args.c.second];
        to = narrow<Out>(args.accumulate ? widen(to) + sums[i][j] : sums[i][j]);
      }
    }
  }
}

/// One of the three products of a spec, and where its operands are in the spec.
struct GroupedProblem {
  bool divides_depth = false;
  bool transposes_b = false;  ///< b of a group is [n,k] in memory
  bool accumulate = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t num_groups = 0;
  size_t a = 0;
  size_t b = 1;
};

constexpr size_t kOffsets = 2;
constexpr size_t kResult = 3;

template <class T, class Out>
PlainArgs<T, Out> plain_args(const GroupedProblem& p, const CudaKernelArgs& args) {
  PlainArgs<T, Out> o{.a = {.data = args.data<const T>(p.a), .first = p.k, .second = 1},
                      .b = {.data = args.data<const T>(p.b), .first = p.n, .second = 1},
                      .c = {.data = args.data<Out>(kResult), .first = p.n, .second = 1},
                      .offsets = args.data<const int32_t>(kOffsets),
                      .m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .group_elems = p.divides_depth ? p.m * p.n : p.n * p.k,
                      .num_groups = static_cast<int>(p.num_groups),
                      .accumulate = p.accumulate};
  if (p.divides_depth) {
    o.a.first = 1;
    o.a.second = p.m;
  } else if (p.transposes_b) {
    o.b.first = 1;
    o.b.second = p.k;
  }
  return o;
}

/// A block for each tile that there can be: each group may end with a part of a tile.
template <bool kDividesDepth, class T, class Out>
CudaKernel plain_kernel_of(const GroupedProblem& p) {
  const int64_t tiles = ceil_div(p.m, kTile) + (kDividesDepth ? 0 : p.num_groups);
  const dim3 grid(grid_of(ceil_div(p.n, kTile)), grid_of(tiles),
                  kDividesDepth ? grid_of(p.num_groups) : 1);
  check(grid.y < 65536 && grid.z < 65536, "a plain product of {} x {} groups is too large", p.m,
        p.num_groups);
  return {.launch = [p, grid](const CudaKernelArgs& args) {
    plain_kernel<kDividesDepth><<<grid, kThreads, 0, args.stream>>>(plain_args<T, Out>(p, args));
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

CudaKernel make_plain(const OpSpec& spec, const GroupedProblem& p) {
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() {
    if (!p.divides_depth) {
      return plain_kernel_of<false, T, T>(p);
    }
    return spec.operands[kResult].dtype == DType::kBF16 ? plain_kernel_of<true, T, Bf16>(p)
                                                        : plain_kernel_of<true, T, float>(p);
  });
}

int64_t count_groups(const OpSpec& spec) {
  return spec.operands[kOffsets].shape[0] - 1;
}

std::string_view kind_of(const GroupedProblem& p) {
  if (p.divides_depth) {
    return p.accumulate ? "grouped_tn_added" : "grouped_tn";
  }
  return p.transposes_b ? "grouped_nt" : "grouped_nn";
}

std::vector<std::string> sm90_names(const OpSpec& spec, const GroupedProblem& p) {
  const bool has_vectors = is_whole_vectors(p.n) && is_whole_vectors(p.divides_depth ? p.m : p.k);
  return spec.operands[0].dtype == DType::kBF16 && has_vectors ? sm90_product_names(kind_of(p))
                                                               : std::vector<std::string>();
}

CudaKernel make_sm90(const GroupedProblem& p, std::string_view name, CudaContext& context) {
  const CudaKernel kernel = make_sm90_product(
      kind_of(p), name, {.m = p.m, .n = p.n, .k = p.k, .groups = p.num_groups}, context);
  return {.launch =
              [p, launch = kernel.launch](const CudaKernelArgs& args) {
                const std::array operands{args.operands[p.a], args.operands[p.b],
                                          args.operands[kResult], args.operands[kOffsets]};
                launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          .scratch_bytes = kernel.scratch_bytes};
}

TimedWork timed_work(const OpSpec& spec) {
  TimedWork work{.flops = spec_cost(spec).flops};
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const OperandSpec& operand = spec.operands[i];
    work.operands.push_back(
        {.num_elems = operand.shape.num_elems(),
         .dtype = operand.dtype,
         .integers = i == kOffsets ? valid_integers(spec, i) : std::vector<int32_t>()});
  }
  return work;
}

/// The product of a weight gradient in this spec's types.
GroupedProblem wgrad_problem(const OpSpec& spec) {
  const Shape& x = spec.operands[0].shape;
  return {.divides_depth = true,
          .accumulate = attributes_of<GroupedWgradAttributes>(spec).accumulate,
          .m = spec.operands[1].shape[1],
          .n = x[1],
          .k = x[0],
          .num_groups = count_groups(spec),
          .a = 1,
          .b = 0};
}

CudaKernel make_grouped(const OpSpec& spec, const GroupedProblem& p, CudaContext& context) {
  const std::vector<std::string> names = sm90_names(spec, p);
  if (names.empty()) {
    return make_plain(spec, p);
  }
  const auto recall = [&](std::string_view name) -> std::optional<CudaKernel> {
    return std::ranges::find(names, name) != names.end()
               ? std::optional(make_sm90(p, name, context))
               : std::nullopt;
  };
  const auto candidates = [&] {
    std::vector<NamedKernel> list;
    for (const std::string& name : names) {
      list.push_back({.name = name, .kernel = make_sm90(p, name, context)});
    }
    return list;
  };
  return fastest_kernel(
      {.key = fmt::format("{} 1 {} x [{},{},{}]; {}; sm90 kernels {}", kind_of(p), p.num_groups,
                          p.m, p.n, p.k, device_text(context), sm90_products_version()),
       .work = timed_work(spec),
       .candidates = candidates,
       .recall = recall},
      context);
}

}  // namespace

CudaKernel make_cuda_grouped_linear(const OpSpec& spec, CudaContext& context) {
  const Shape& x = spec.operands[0].shape;
  return make_grouped(spec,
                      {.transposes_b = true,
                       .m = x[0],
                       .n = spec.operands[kResult].shape[1],
                       .k = x[1],
                       .num_groups = count_groups(spec)},
                      context);
}

CudaKernel make_cuda_grouped_linear_dgrad(const OpSpec& spec, CudaContext& context) {
  const Shape& dy = spec.operands[0].shape;
  return make_grouped(
      spec,
      {.m = dy[0], .n = spec.operands[1].shape[1], .k = dy[1], .num_groups = count_groups(spec)},
      context);
}

CudaKernel make_cuda_grouped_linear_wgrad(const OpSpec& spec, CudaContext& context) {
  const GroupedProblem problem = wgrad_problem(spec);
  if (spec.operands[kResult].dtype == DType::kBF16 && !sm90_names(spec, problem).empty()) {
    return with_wide_result(spec, kResult, [&](const OpSpec& wide) {
      return make_grouped(wide, wgrad_problem(wide), context);
    });
  }
  return make_grouped(spec, problem, context);
}

}  // namespace braid
