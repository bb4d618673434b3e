#include "ops/muon.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// Elementwise in fp32, like the CPU kernels, and bitwise repeatable. Products take most of Muon's
// time: these kernels load and store elements one by one, neighbours by neighbouring threads.
namespace braid {
namespace {

constexpr int kMuonThreads = 256;
constexpr int kTile = 32;     // rows and columns of a tile that is transposed
constexpr int kTileRows = 8;  // of threads

/// Calls body(i) for i in [0, count).
template <class Body>
__global__ void __launch_bounds__(kMuonThreads) each_kernel(int64_t count, Body body) {
  const int64_t i = int64_t{blockIdx.x} * kMuonThreads + threadIdx.x;
  if (i < count) {
    body(i);
  }
}

template <class Body>
void launch_each(int64_t count, const Body& body, cudaStream_t stream) {
  each_kernel<<<grid_of(ceil_div(count, kMuonThreads)), kMuonThreads, 0, stream>>>(count, body);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

/// Grad, Moment: float or Bf16; T: of the update.
template <class Grad, class Moment, class T>
struct MomentumBody {
  const Grad* grad;      // [n]
  const float* scale;    // [1]
  const float* scalars;  // [3], or [4] with bf16 moments: see adamw_scalars
  Moment* exp_avg;       // [n]
  T* update;             // [n]
  float momentum;
  float rest;  // 1 - momentum
  bool nesterov;

  __device__ void operator()(int64_t i) const {
    if (*scale == 0.0f) {
      update[i] = narrow<T>(0.0f);
      return;
    }
    const float read = widen(grad[i]);
    const float g = read * *scale;
    const float mean = momentum * widen(exp_avg[i]) + rest * g;
    if constexpr (sizeof(Moment) == 2) {
      const uint32_t random =
          moment_rounding_bits(__float_as_uint(read), 0, uint32_t{__bfloat16_as_ushort(exp_avg[i])},
                               __float_as_uint(scalars[3]));
      exp_avg[i] = __ushort_as_bfloat16(bf16_rounded_randomly(__float_as_uint(mean), random));
    } else {
      exp_avg[i] = mean;
    }
    update[i] = narrow<T>(nesterov ? rest * g + momentum * mean : mean);
  }
};

template <class T>
struct NormalizeBody {
  const double* squares;  // [1]
  T* x;                   // [n]

  __device__ void operator()(int64_t i) const {
    x[i] = narrow<T>(widen(x[i]) / static_cast<float>(sqrt(*squares) + 1e-7));
  }
};

template <class T>
struct WeightedSumBody {
  const T* x;  // [n]
  T* y;        // [n]
  float x_weight;
  float y_weight;

  __device__ void operator()(int64_t i) const {
    y[i] = narrow<T>(x_weight * widen(x[i]) + y_weight * widen(y[i]));
  }
};

template <class T>
struct UpdateBody {
  const T* update;       // [n]
  const float* scale;    // [1]
  const float* scalars;  // [3] or [4]
  float* weight;         // [n]
  Bf16* param;           // [n] or null
  double group_rate;
  double weight_decay;

  __device__ void operator()(int64_t i) const {
    float moved = weight[i];
    if (*scale != 0.0f) {
      const double lr = group_rate * static_cast<double>(scalars[0]);
      const float decayed = moved - static_cast<float>(lr * weight_decay) * moved;
      moved = decayed - static_cast<float>(lr) * widen(update[i]);
      weight[i] = moved;
    }
    if (param != nullptr) {
      param[i] = narrow<Bf16>(moved);
    }
  }
};

template <class T>
struct PlaceArgs {
  const T* from = nullptr;
  T* to = nullptr;
  int64_t rows = 0;  // in `from`
  int64_t columns = 0;
  int64_t from_pitch = 0;
  int64_t to_pitch = 0;
  float factor = 1;
};

/// to[i to_pitch + j] = factor from[i from_pitch + j], or to[j to_pitch + i] if transposed. A tile
/// of shared memory turns columns into rows; one more column keeps its columns in different banks.
template <bool kTransposed, class T>
__global__ void __launch_bounds__(kTile* kTileRows) place_kernel(PlaceArgs<T> args) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t tiles = (args.columns + kTile - 1) / kTile;
  const int64_t row = blockIdx.x / tiles * kTile;
  const int64_t column = blockIdx.x % tiles * kTile;
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    if (row + i < args.rows && column + threadIdx.x < args.columns) {
      tile[i][threadIdx.x] =
          args.factor * widen(args.from[(row + i) * args.from_pitch + column + threadIdx.x]);
    }
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    if constexpr (kTransposed) {
      if (column + i < args.columns && row + threadIdx.x < args.rows) {
        args.to[(column + i) * args.to_pitch + row + threadIdx.x] = narrow<T>(tile[threadIdx.x][i]);
      }
    } else {
      if (row + i < args.rows && column + threadIdx.x < args.columns) {
        args.to[(row + i) * args.to_pitch + column + threadIdx.x] = narrow<T>(tile[i][threadIdx.x]);
      }
    }
  }
}

template <class T>
CudaKernel place_launch(const PlaceArgs<T>& sizes, bool transposed) {
  const unsigned grid = grid_of(ceil_div(sizes.rows, kTile) * ceil_div(sizes.columns, kTile));
  return {.launch = [=](const CudaKernelArgs& kernel) {
    PlaceArgs<T> args = sizes;
    args.from = kernel.data<const T>(0);
    args.to = kernel.data<T>(1);
    const dim3 threads(kTile, kTileRows);
    if (transposed) {
      place_kernel<true><<<grid, threads, 0, kernel.stream>>>(args);
    } else {
      place_kernel<false><<<grid, threads, 0, kernel.stream>>>(args);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

template <class Grad, class Moment, class T>
CudaKernel momentum_launch(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto attributes = attributes_of<MuonMeanAttributes>(spec);
  return {.launch = [=](const CudaKernelArgs& args) {
    launch_each(count,
                MomentumBody<Grad, Moment, T>{.grad = args.data<const Grad>(0),
                                              .scale = args.data<const float>(1),
                                              .scalars = args.data<const float>(2),
                                              .exp_avg = args.data<Moment>(3),
                                              .update = args.data<T>(4),
                                              .momentum = static_cast<float>(attributes.momentum),
                                              .rest = static_cast<float>(1.0 - attributes.momentum),
                                              .nesterov = attributes.nesterov},
                args.stream);
  }};
}

}  // namespace

CudaKernel make_cuda_muon_mean(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_gradient(spec, [&]<class Grad>() {
    return dispatch_cuda_dtype(spec, 4, [&]<class T>() {
      return moments_dtype(spec) == DType::kBF16 ? momentum_launch<Grad, Bf16, T>(spec)
                                                 : momentum_launch<Grad, float, T>(spec);
    });
  });
}

CudaKernel make_cuda_take_matrix(const OpSpec& spec, CudaContext& /*context*/) {
  const auto place = attributes_of<MatrixPlaceAttributes>(spec);
  const MatrixSize size = matrix_size(spec);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() {
    return place_launch<T>({.rows = size.rows,
                            .columns = size.columns,
                            .from_pitch = place.pitch,
                            .to_pitch = place.transposed ? size.rows : size.columns},
                           place.transposed);
  });
}

CudaKernel make_cuda_put_matrix(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<PutMatrixAttributes>(spec);
  const bool transposed = attributes.place.transposed;
  const MatrixSize size = matrix_size(spec);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() {
    return place_launch<T>({.rows = transposed ? size.columns : size.rows,
                            .columns = transposed ? size.rows : size.columns,
                            .from_pitch = transposed ? size.rows : size.columns,
                            .to_pitch = attributes.place.pitch,
                            .factor = static_cast<float>(attributes.factor)},
                           transposed);
  });
}

CudaKernel make_cuda_normalize(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return dispatch_cuda_dtype(spec, 1, [&]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      launch_each(count, NormalizeBody<T>{args.data<const double>(0), args.data<T>(1)},
                  args.stream);
    }};
  });
}

CudaKernel make_cuda_weighted_sum(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto attributes = attributes_of<WeightedSumAttributes>(spec);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      launch_each(count,
                  WeightedSumBody<T>{args.data<const T>(0), args.data<T>(1),
                                     static_cast<float>(attributes.x_weight),
                                     static_cast<float>(attributes.y_weight)},
                  args.stream);
    }};
  });
}

CudaKernel make_cuda_muon_update(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto attributes = attributes_of<MuonUpdateAttributes>(spec);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      launch_each(count,
                  UpdateBody<T>{.update = args.data<const T>(0),
                                .scale = args.data<const float>(1),
                                .scalars = args.data<const float>(2),
                                .weight = args.data<float>(3),
                                .param = attributes.has_param ? args.data<Bf16>(4) : nullptr,
                                .group_rate = attributes.group.rate,
                                .weight_decay = attributes.weight_decay},
                  args.stream);
    }};
  });
}

}  // namespace braid
