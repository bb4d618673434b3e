#include "ops/mamba2_section.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2.cuh"
#include "ops/attributes.h"

// What is special about sections of sequences. All of it is small: a few rows per section, and one
// number per head.
namespace braid {
namespace {

constexpr int kThreads = 256;

/// A thread per head of a section.
__global__ void __launch_bounds__(kThreads) decays_kernel(const __grid_constant__ Mamba2Args args) {
  const Mamba2Sizes& s = args.sizes;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= int64_t{s.sequences()} * s.heads) {
    return;
  }
  const int64_t section = at / s.heads;
  const int64_t head = at % s.heads;
  const int chunks = s.chunks_per_sequence();
  const float* last = args.decay + head * s.padded_rows() + (section * chunks + 1) * kSsdChunk - 1;
  float sum = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    sum += last[int64_t{chunk} * kSsdChunk];
  }
  args.summaries[section * s.heads * (s.state_elems() + 1) + s.heads * s.state_elems() + head] =
      exp2f(sum);
}

struct LastRows {
  Mamba2InputsAttributes a;
  int64_t width;      ///< of a row of last inputs
  int64_t row_elems;  ///< of a row of zxbcdt
  int64_t elems;      ///< of all last inputs

  LastRows(const OpSpec& spec, const OperandSpec& last, const OperandSpec& rows)
      : a(attributes_of<Mamba2InputsAttributes>(spec)),
        width(last.shape[1]),
        row_elems(rows.shape[1]),
        elems(last.shape.num_elems()) {}

  /// Where an element of the last inputs lies in zxbcdt.
  __device__ int64_t place(int64_t at) const {
    const int64_t i = at / width;
    const int64_t row = (i / a.rows + 1) * a.sequence - a.rows + i % a.rows;
    return row * row_elems + a.inner + at % width;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    last_inputs_kernel(LastRows rows, const T* zxbcdt, T* last) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < rows.elems) {
    last[at] = zxbcdt[rows.place(at)];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_inputs_kernel(LastRows rows, const T* d_last, T* d_zxbcdt) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < rows.elems) {
    T& to = d_zxbcdt[rows.place(at)];
    to = narrow<T>(widen(to) + widen(d_last[at]));
  }
}

unsigned blocks_of(int64_t elems) {
  return grid_of(ceil_div(elems, kThreads));
}

}  // namespace

void launch_mamba2_decays(const Mamba2Args& args, cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  decays_kernel<<<blocks_of(int64_t{s.sequences()} * s.heads), kThreads, 0, stream>>>(args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

CudaKernel make_cuda_mamba2_last_inputs(const OpSpec& spec, CudaContext& /*context*/) {
  const LastRows rows(spec, spec.operands[1], spec.operands[0]);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [rows](const CudaKernelArgs& args) {
      last_inputs_kernel<T><<<blocks_of(rows.elems), kThreads, 0, args.stream>>>(
          rows, args.data<const T>(0), args.data<T>(1));
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

CudaKernel make_cuda_mamba2_add_inputs(const OpSpec& spec, CudaContext& /*context*/) {
  const LastRows rows(spec, spec.operands[0], spec.operands[1]);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [rows](const CudaKernelArgs& args) {
      add_inputs_kernel<T><<<blocks_of(rows.elems), kThreads, 0, args.stream>>>(
          rows, args.data<const T>(0), args.data<T>(1));
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

}  // namespace braid
