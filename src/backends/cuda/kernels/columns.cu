#include "ops/columns.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// One thread per vector of 16 bytes of the result, or per element where the columns do not begin
// and end at multiples of that: consecutive threads read and write consecutive ones of a run.
namespace braid {
namespace {

constexpr int kThreads = 256;

/// Sizes in vectors of kElems elements.
template <class T>
struct ColumnsArgs {
  const T* from = nullptr;  // [runs of all rows, from_width]
  T* to = nullptr;          // [runs of all rows, to_width]
  int64_t vectors = 0;      // of `to`
  int64_t from_width = 0;
  int64_t to_width = 0;
  int64_t shift = 0;  // column of `from` for column 0 of `to`; negative for put_columns
};

/// In 32 bits where they suffice: a division in 64 bits takes longer than the copy.
__device__ int64_t quotient(int64_t a, int64_t b) {
  return a <= UINT32_MAX ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

template <int kElems, class T>
__global__ void __launch_bounds__(kThreads) columns_kernel(ColumnsArgs<T> args) {
  constexpr bool kAligned = kElems > 1;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= args.vectors) {
    return;
  }
  const int64_t run = quotient(at, args.to_width);
  const int64_t column = at - run * args.to_width + args.shift;
  DeviceVector<T, kElems> vector = {};
  if (column >= 0 && column < args.from_width) {
    vector = load_vector<kElems, kAligned>(args.from + (run * args.from_width + column) * kElems,
                                           kElems);
  }
  store_vector<kAligned>(args.to + at * kElems, vector, kElems);
}

template <int kElems, class T>
void launch_columns(const CudaKernelArgs& args, const ColumnsArgs<T>& elems) {
  const ColumnsArgs<T> o{.from = elems.from,
                         .to = elems.to,
                         .vectors = elems.vectors / kElems,
                         .from_width = elems.from_width / kElems,
                         .to_width = elems.to_width / kElems,
                         .shift = elems.shift / kElems};
  columns_kernel<kElems>
      <<<grid_of(ceil_div(o.vectors, int64_t{kThreads})), kThreads, 0, args.stream>>>(o);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

CudaKernel columns_kernel_of(const OpSpec& spec, int64_t from_width, int64_t to_width,
                             int64_t shift) {
  const int64_t elems = spec.operands[1].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    constexpr int kElems = kVectorElems<T>;
    const bool fits = from_width % kElems == 0 && to_width % kElems == 0 && shift % kElems == 0;
    return {.launch = [=](const CudaKernelArgs& args) {
      const ColumnsArgs<T> in_elems{.from = args.data<const T>(0),
                                    .to = args.data<T>(1),
                                    .vectors = elems,
                                    .from_width = from_width,
                                    .to_width = to_width,
                                    .shift = shift};
      if (fits && all_aligned(16, {args.operands[0], args.operands[1]})) {
        launch_columns<kElems>(args, in_elems);
      } else {
        launch_columns<1>(args, in_elems);
      }
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
