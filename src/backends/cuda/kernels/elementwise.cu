#include "ops/elementwise.h"

#include <cmath>
#include <cstring>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/kernels/elementwise_map.cuh"
#include "backends/cuda/kernels/factories.h"
#include "ops/attributes.h"

namespace braid {
namespace {

struct Add {
  template <class W>
  __device__ W operator()(W a, W b) const {
    return a + b;
  }
};

struct Identity {
  template <class W>
  __device__ W operator()(W x) const {
    return x;
  }
};

struct Scale {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

template <class In, class Out>
CudaKernel cast_kernel(int64_t count) {
  return {.launch = [count](const CudaKernelArgs& args) {
    launch_map<false>(
        Identity{},
        MapArgs<In, Out>{.a = args.data<const In>(0), .out = args.data<Out>(1), .count = count},
        args.stream);
  }};
}

bool lies_on(int device, const void* pointer) {
  cudaPointerAttributes attributes{};
  BRAID_CUDA_CHECK(cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type == cudaMemoryTypeDevice && attributes.device == device;
}

/// The value's bytes, repeated to 8 bytes.
template <class T>
uint64_t repeated(T value) {
  uint64_t pattern = 0;
  for (size_t at = 0; at < sizeof(pattern); at += sizeof(T)) {
    std::memcpy(reinterpret_cast<std::byte*>(&pattern) + at, &value, sizeof(T));
  }
  return pattern;
}

uint64_t fill_pattern(const OpSpec& spec) {
  const double value = attributes_of<FillAttributes>(spec).value;
  if (value == 0.0 && !std::signbit(value)) {
    return 0;  // of any type
  }
  switch (spec.operands[0].dtype) {
    case DType::kF64:
      return repeated(value);
    case DType::kF32:
      return repeated(static_cast<float>(value));
    case DType::kBF16:
      return repeated(BFloat16(static_cast<float>(value)));
    default:
      throw_internal_error("op fill: no CUDA kernel for {}", dtype_name(spec.operands[0].dtype));
  }
}

constexpr int kFillThreads = 256;

// Writes whole 16-byte words between the first and the last multiple of 16, and the bytes before
// and after them one by one. An element starts at every multiple of its size from `out`, so a
// byte's distance from `out` determines its byte of the pattern.
__global__ void __launch_bounds__(kFillThreads)
    fill_kernel(uint64_t pattern, std::byte* out, int64_t head_bytes, int64_t words,
                int64_t bytes) {
  const int64_t thread = int64_t{blockIdx.x} * kFillThreads + threadIdx.x;
  const auto byte_at = [pattern](int64_t at) {
    return static_cast<std::byte>(pattern >> (at % 8 * 8));
  };
  if (thread < words) {
    const int shift = static_cast<int>(head_bytes % 8 * 8);
    const uint64_t rotated = shift == 0 ? pattern : pattern >> shift | pattern << (64 - shift);
    reinterpret_cast<ulonglong2*>(out + head_bytes)[thread] = {rotated, rotated};
  }
  if (thread < head_bytes) {
    out[thread] = byte_at(thread);
  }
  const int64_t tail = head_bytes + words * 16 + thread;
  if (thread < 16 && tail < bytes) {
    out[tail] = byte_at(tail);
  }
}

}  // namespace

CudaKernel make_cuda_add(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<true>(Add{},
                       MapArgs<T, T>{.a = args.data<const T>(0),
                                     .b = args.data<const T>(1),
                                     .out = args.data<T>(2),
                                     .count = count},
                       args.stream);
    }};
  });
}

CudaKernel make_cuda_accumulate(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() {
    return dispatch_cuda_dtype(spec, 1, [count]<class Sum>() -> CudaKernel {
      return {.launch = [count](const CudaKernelArgs& args) {
        launch_map<true>(Add{},
                         MapArgs<T, Sum, Sum>{.a = args.data<const T>(0),
                                              .b = args.data<const Sum>(1),
                                              .out = args.data<Sum>(1),
                                              .count = count},
                         args.stream);
      }};
    });
  });
}

CudaKernel make_cuda_scale(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto factor = static_cast<float>(attributes_of<ScaleAttributes>(spec).factor);
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    const float rounded = sizeof(T) == 2 ? static_cast<float>(BFloat16(factor)) : factor;
    return {.launch = [=](const CudaKernelArgs& args) {
      launch_map<false>(
          Scale{rounded},
          MapArgs<T, T>{.a = args.data<const T>(0), .out = args.data<T>(1), .count = count},
          args.stream);
    }};
  });
}

CudaKernel make_cuda_cast(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const DType from = spec.operands[0].dtype;
  const DType to = spec.operands[1].dtype;
  if (from == DType::kF32 && to == DType::kBF16) {
    return cast_kernel<float, Bf16>(count);
  }
  if (from == DType::kBF16 && to == DType::kF32) {
    return cast_kernel<Bf16, float>(count);
  }
  if (from == DType::kF32 && to == DType::kF64) {
    return cast_kernel<float, double>(count);
  }
  if (from == DType::kF64 && to == DType::kF32) {
    return cast_kernel<double, float>(count);
  }
  throw_internal_error("op cast: no CUDA kernel from {} to {}", dtype_name(from), dtype_name(to));
}

// In a graph a copy engine runs the runtime's copy: 2.8 TB/s inside an H200, where a kernel reaches
// 4.3. All other copies (pinned host memory, peers) suit copy engines.
CudaKernel make_cuda_copy(const OpSpec& spec, CudaContext& context) {
  const size_t bytes =
      static_cast<size_t>(spec.operands[0].shape.num_elems()) * dtype_bytes(spec.operands[0].dtype);
  return {.launch = [bytes, device = context.device()](const CudaKernelArgs& args) {
    const std::byte* const from = args.operands[0];
    std::byte* const to = args.operands[1];
    if (bytes % sizeof(uint32_t) == 0 && all_aligned(sizeof(uint32_t), {from, to}) &&
        lies_on(device, from) && lies_on(device, to)) {
      launch_map<false>(
          Identity{},
          MapArgs<uint32_t, uint32_t>{.a = reinterpret_cast<const uint32_t*>(from),
                                      .out = reinterpret_cast<uint32_t*>(to),
                                      .count = static_cast<int64_t>(bytes / sizeof(uint32_t))},
          args.stream);
    } else {
      BRAID_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, args.stream));
    }
  }};
}

CudaKernel make_cuda_fill(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t bytes = spec.operands[0].shape.num_elems() *
                        static_cast<int64_t>(dtype_bytes(spec.operands[0].dtype));
  const uint64_t pattern = fill_pattern(spec);
  return {.launch = [=](const CudaKernelArgs& args) {
    const auto misaligned =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(args.operands[0]) % 16);
    const int64_t head_bytes = std::min(bytes, (16 - misaligned) % 16);
    const int64_t full_words = (bytes - head_bytes) / 16;
    const unsigned grid = grid_of(ceil_div(std::max<int64_t>(full_words, 16), kFillThreads));
    fill_kernel<<<grid, kFillThreads, 0, args.stream>>>(pattern, args.operands[0], head_bytes,
                                                        full_words, bytes);
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
