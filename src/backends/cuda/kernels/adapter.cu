#include "ops/adapter.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// One thread per element of the result: consecutive threads write consecutive elements, and read
// them where the columns lie side by side.
namespace braid {
namespace {

constexpr int kThreads = 256;

template <class T>
struct AddAdaptersArgs {
  const T* base = nullptr;            // [N, M]
  const T* z[kMostAdapters] = {};     // [N, size] each
  int64_t size[kMostAdapters] = {};   // 0: there is no such adapter
  int64_t begin[kMostAdapters] = {};  // first column
  T* y = nullptr;                     // [N, M]
  int64_t elems = 0;                  // N M
  int64_t width = 0;                  // M
  int64_t step = 1;
  float scale = 1.0f;
};

template <class T>
__global__ void __launch_bounds__(kThreads) add_adapters_kernel(AddAdaptersArgs<T> args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= args.elems) {
    return;
  }
  const int64_t row = at / args.width;
  const int64_t column = at - row * args.width;
  T y = args.base[at];
#pragma unroll
  for (int i = 0; i < static_cast<int>(kMostAdapters); ++i) {
    const int64_t past = column - args.begin[i];
    const int64_t of_adapter = past / args.step;
    if (past >= 0 && of_adapter < args.size[i] && of_adapter * args.step == past) {
      const float z = widen(args.z[i][row * args.size[i] + of_adapter]);
      y = narrow<T>(widen(y) + args.scale * z);
    }
  }
  args.y[at] = y;
}

template <class T>
struct AdapterGradArgs {
  const T* dy = nullptr;  // [N, width]
  T* dz = nullptr;        // [N, size]
  int64_t elems = 0;      // N size
  int64_t width = 0;
  int64_t size = 0;
  int64_t begin = 0;
  int64_t step = 1;
  float scale = 1.0f;
};

template <class T>
__global__ void __launch_bounds__(kThreads) adapter_grad_kernel(AdapterGradArgs<T> args) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= args.elems) {
    return;
  }
  const int64_t row = at / args.size;
  const int64_t column = args.begin + (at - row * args.size) * args.step;
  args.dz[at] = narrow<T>(args.scale * widen(args.dy[row * args.width + column]));
}

}  // namespace

CudaKernel make_cuda_add_adapters(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    const auto a = attributes_of<AddAdaptersAttributes>(spec);
    const size_t num_adapters = spec.operands.size() - 2;
    AddAdaptersArgs<T> shape{.elems = spec.operands[0].shape.num_elems(),
                             .width = spec.operands[0].shape[1],
                             .step = a.step,
                             .scale = static_cast<float>(a.scale)};
    for (size_t i = 0; i < num_adapters; ++i) {
      shape.size[i] = spec.operands[i + 1].shape[1];
      shape.begin[i] = a.begin_of(i);
    }
    return {.launch = [=](const CudaKernelArgs& args) {
      AddAdaptersArgs<T> o = shape;
      o.base = args.data<const T>(0);
      for (size_t i = 0; i < num_adapters; ++i) {
        o.z[i] = args.data<const T>(i + 1);
      }
      o.y = args.data<T>(num_adapters + 1);
      add_adapters_kernel<<<grid_of(ceil_div(o.elems, kThreads)), kThreads, 0, args.stream>>>(o);
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

CudaKernel make_cuda_adapter_grad(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<AdapterGradAttributes>(spec);
  const int64_t width = spec.operands[0].shape[1];
  const int64_t size = spec.operands[1].shape[1];
  const int64_t elems = spec.operands[1].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      const AdapterGradArgs<T> o{.dy = args.data<const T>(0),
                                 .dz = args.data<T>(1),
                                 .elems = elems,
                                 .width = width,
                                 .size = size,
                                 .begin = a.begin,
                                 .step = a.step,
                                 .scale = static_cast<float>(a.scale)};
      adapter_grad_kernel<<<grid_of(ceil_div(elems, kThreads)), kThreads, 0, args.stream>>>(o);
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

}  // namespace braid
