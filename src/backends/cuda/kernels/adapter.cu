#include "ops/adapter.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/vector_rows.cuh"
#include "ops/attributes.h"

// One block for each row. Where the columns of an adapter and their neighbours of other adapters
// begin and end at multiples of 16 bytes, a thread takes as many columns as hold 16 bytes of each
// adapter; the same code takes them one by one elsewhere.
namespace braid {
namespace {

/// A column or number of columns, which kernels count in 32 bits.
int column_of(int64_t column) {
  check(column <= std::numeric_limits<int>::max() / 2, "{} columns", column);
  return static_cast<int>(column);
}

/// The largest step with accesses of 16 bytes: gate and up alternate.
constexpr int64_t kMostVectorStep = 2;

template <class T>
struct AddAdaptersArgs {
  const T* base = nullptr;         // [N, M]
  const T* z[kMostAdapters] = {};  // [N, size] each
  int size[kMostAdapters] = {};    // 0: there is no such adapter
  int begin[kMostAdapters] = {};   // first column
  T* y = nullptr;                  // [N, M]
  int width = 0;                   // M
  int step = 1;
  float scale = 1.0f;
};

template <class T>
__device__ T with_adapter(T y, T z, float scale) {
  // Contracted by hand: vectors and single columns must have the same bits.
  return narrow<T>(__fmaf_rn(scale, widen(z), widen(y)));
}

/// kStep of args.step; columns, begins and sizes allow vectors.
template <int kStep, class T>
__global__ void __launch_bounds__(kRowThreads) add_adapters_kernel(AddAdaptersArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t row = blockIdx.x;
  const T* base = args.base + row * args.width;
  T* to = args.y + row * args.width;
  for (int c = static_cast<int>(threadIdx.x) * V * kStep; c < args.width;
       c += static_cast<int>(blockDim.x) * V * kStep) {
    auto y = load_vector<V * kStep, true>(base + c, V * kStep);
#pragma unroll
    for (int i = 0; i < static_cast<int>(kMostAdapters); ++i) {
      const int offset = args.begin[i] % kStep;
      const int of_adapter = (c + offset - args.begin[i]) / kStep;
      if (of_adapter >= 0 && of_adapter < args.size[i]) {
        const auto z = load_vector<V, true>(args.z[i] + row * args.size[i] + of_adapter, V);
#pragma unroll
        for (int v = 0; v < V * kStep; ++v) {
          if (v % kStep == offset) {
            y.elems[v] = with_adapter(y.elems[v], z.elems[v / kStep], args.scale);
          }
        }
      }
    }
    store_vector<true>(to + c, y, V * kStep);
  }
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) add_adapters_by_column(AddAdaptersArgs<T> args) {
  const int64_t row = blockIdx.x;
  for (int c = static_cast<int>(threadIdx.x); c < args.width; c += static_cast<int>(blockDim.x)) {
    T y = args.base[row * args.width + c];
#pragma unroll
    for (int i = 0; i < static_cast<int>(kMostAdapters); ++i) {
      const int past = c - args.begin[i];
      const int of_adapter = past / args.step;
      if (past >= 0 && of_adapter < args.size[i] && of_adapter * args.step == past) {
        y = with_adapter(y, args.z[i][row * args.size[i] + of_adapter], args.scale);
      }
    }
    args.y[row * args.width + c] = y;
  }
}

template <class T>
bool has_adapter_vectors(const AddAdaptersArgs<T>& o) {
  if (o.step > kMostVectorStep || !has_vectors<T>(o.width, {o.base, o.y, o.z[0], o.z[1], o.z[2]}) ||
      o.width % (kVectorElems<T> * o.step) != 0) {
    return false;
  }
  for (size_t i = 0; i < kMostAdapters; ++i) {
    if (o.size[i] % kVectorElems<T> != 0 ||
        (o.begin[i] - o.begin[i] % o.step) % (kVectorElems<T> * o.step) != 0) {
      return false;
    }
  }
  return true;
}

template <class T>
void launch_add_adapters(const AddAdaptersArgs<T>& o, int64_t rows, cudaStream_t stream) {
  if (!has_adapter_vectors(o)) {
    add_adapters_by_column<<<grid_of(rows), kRowThreads, 0, stream>>>(o);
  } else if (o.step == 1) {
    add_adapters_kernel<1><<<grid_of(rows), threads_of_row<T>(o.width), 0, stream>>>(o);
  } else {
    add_adapters_kernel<2><<<grid_of(rows), threads_of_row<T>(o.width / 2), 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class T>
struct AdapterGradArgs {
  const T* dy = nullptr;  // [N, width]
  T* dz = nullptr;        // [N, size]
  int64_t width = 0;
  int size = 0;
  int begin = 0;
  int step = 1;
  float scale = 1.0f;
};

/// kStep of args.step; columns and sizes allow vectors.
template <int kStep, class T>
__global__ void __launch_bounds__(kRowThreads) adapter_grad_kernel(AdapterGradArgs<T> args) {
  constexpr int V = kVectorElems<T>;
  const int64_t row = blockIdx.x;
  const int offset = args.begin % kStep;
  const T* dy = args.dy + row * args.width + args.begin - offset;
  for (int c = static_cast<int>(threadIdx.x) * V; c < args.size;
       c += static_cast<int>(blockDim.x) * V) {
    const auto d = load_vector<V * kStep, true>(dy + c * kStep, V * kStep);
    DeviceVector<T, V> dz;
#pragma unroll
    for (int v = 0; v < V * kStep; ++v) {
      if (v % kStep == offset) {
        dz.elems[v / kStep] = narrow<T>(args.scale * widen(d.elems[v]));
      }
    }
    store_vector<true>(args.dz + row * args.size + c, dz, V);
  }
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) adapter_grad_by_column(AdapterGradArgs<T> args) {
  const int64_t row = blockIdx.x;
  const T* dy = args.dy + row * args.width + args.begin;
  for (int c = static_cast<int>(threadIdx.x); c < args.size; c += static_cast<int>(blockDim.x)) {
    args.dz[row * args.size + c] = narrow<T>(args.scale * widen(dy[int64_t{c} * args.step]));
  }
}

template <class T>
void launch_adapter_grad(const AdapterGradArgs<T>& o, int64_t rows, cudaStream_t stream) {
  const bool vectors = o.step <= kMostVectorStep && has_vectors<T>(o.size, {o.dy, o.dz}) &&
                       o.width % kVectorElems<T> == 0 &&
                       (o.begin - o.begin % o.step) % kVectorElems<T> == 0;
  const unsigned threads = threads_of_row<T>(o.size);
  if (!vectors) {
    adapter_grad_by_column<<<grid_of(rows), kRowThreads, 0, stream>>>(o);
  } else if (o.step == 1) {
    adapter_grad_kernel<1><<<grid_of(rows), threads, 0, stream>>>(o);
  } else {
    adapter_grad_kernel<2><<<grid_of(rows), threads, 0, stream>>>(o);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_add_adapters(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    const auto a = attributes_of<AddAdaptersAttributes>(spec);
    const size_t num_adapters = spec.operands.size() - 2;
    const int64_t rows = spec.operands[0].shape[0];
    AddAdaptersArgs<T> shape{.width = column_of(spec.operands[0].shape[1]),
                             .step = column_of(a.step),
                             .scale = static_cast<float>(a.scale)};
    for (size_t i = 0; i < num_adapters; ++i) {
      shape.size[i] = column_of(spec.operands[i + 1].shape[1]);
      shape.begin[i] = column_of(a.begin_of(i));
    }
    return {.launch = [=](const CudaKernelArgs& args) {
      AddAdaptersArgs<T> o = shape;
      o.base = args.data<const T>(0);
      for (size_t i = 0; i < num_adapters; ++i) {
        o.z[i] = args.data<const T>(i + 1);
      }
      o.y = args.data<T>(num_adapters + 1);
      launch_add_adapters(o, rows, args.stream);
    }};
  });
}

CudaKernel make_cuda_adapter_grad(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<AdapterGradAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const int size = column_of(spec.operands[1].shape[1]);
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      const AdapterGradArgs<T> o{.dy = args.data<const T>(0),
                                 .dz = args.data<T>(1),
                                 .width = width,
                                 .size = size,
                                 .begin = column_of(a.begin),
                                 .step = column_of(a.step),
                                 .scale = static_cast<float>(a.scale)};
      launch_adapter_grad(o, rows, args.stream);
    }};
  });
}

}  // namespace braid
