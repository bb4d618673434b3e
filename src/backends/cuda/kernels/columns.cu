#include "ops/columns.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// One thread per element of the result: consecutive threads read and write consecutive elements of
// a run.
namespace braid {
namespace {

constexpr int kThreads = 256;

template <class T>
struct ColumnsArgs {
  const T* from = nullptr;  // [runs of all rows, from_width]
  T* to = nullptr;          // [runs of all rows, to_width]
  int64_t elems = 0;        // of `to`
  int64_t from_width = 0;
  int64_t to_width = 0;
  int64_t shift = 0;  // column of `from` for column 0 of `to`; negative for put_columns
};

template <class T>
__global__ void __launch_bounds__(kThreads) columns_kernel(ColumnsArgs<T> args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= args.elems) {
    return;
  }
  const int64_t run = at / args.to_width;
  const int64_t column = at - run * args.to_width + args.shift;
  const bool is_there = column >= 0 && column < args.from_width;
  args.to[at] = is_there ? args.from[run * args.from_width + column] : narrow<T>(0.0f);
}

CudaKernel columns_kernel_of(const OpSpec& spec, int64_t from_width, int64_t to_width,
                             int64_t shift) {
  const int64_t elems = spec.operands[1].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      const ColumnsArgs<T> o{.from = args.data<const T>(0),
                             .to = args.data<T>(1),
                             .elems = elems,
                             .from_width = from_width,
                             .to_width = to_width,
                             .shift = shift};
      columns_kernel<<<grid_of(ceil_div(elems, kThreads)), kThreads, 0, args.stream>>>(o);
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

}  // namespace

CudaKernel make_cuda_take_columns(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<ColumnsAttributes>(spec);
  return columns_kernel_of(spec, a.width, a.size, a.begin);
}

CudaKernel make_cuda_put_columns(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<ColumnsAttributes>(spec);
  return columns_kernel_of(spec, a.size, a.width, -a.begin);
}

}  // namespace braid
