#include "ops/activation.h"

#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/elementwise_map.cuh"
#include "backends/cuda/kernels/factories.h"

// All of them are maps over elements, or over pairs of gate and up; rows do not matter.
namespace braid {
namespace {

template <template <class> class Function>
CudaKernel make_map(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<false>(
          Function<T>{},
          MapArgs<T, T>{.a = args.data<const T>(0), .out = args.data<T>(1), .count = count},
          args.stream);
    }};
  });
}

template <template <class> class Function>
CudaKernel make_map_backward(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<true>(Function<T>{},
                       MapArgs<T, T>{.a = args.data<const T>(0),
                                     .b = args.data<const T>(1),
                                     .out = args.data<T>(2),
                                     .count = count},
                       args.stream);
    }};
  });
}

/// Of pairs of gate and up.
template <template <class> class Function>
CudaKernel make_gated(const OpSpec& spec) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<false>(
          Function<T>{},
          MapArgs<GateUp<T>, T>{
              .a = args.data<const GateUp<T>>(0), .out = args.data<T>(1), .count = count},
          args.stream);
    }};
  });
}

template <template <class> class Function>
CudaKernel make_gated_backward(const OpSpec& spec) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [count]<class T>() -> CudaKernel {
    return {.launch = [count](const CudaKernelArgs& args) {
      launch_map<true>(Function<T>{},
                       MapArgs<GateUp<T>, GateUp<T>, T>{.a = args.data<const GateUp<T>>(0),
                                                        .b = args.data<const T>(1),
                                                        .out = args.data<GateUp<T>>(2),
                                                        .count = count},
                       args.stream);
    }};
  });
}

}  // namespace

CudaKernel make_cuda_swiglu(const OpSpec& spec, CudaContext& /*context*/) {
  return make_gated<Swiglu>(spec);
}

CudaKernel make_cuda_swiglu_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_gated_backward<SwigluBackward>(spec);
}

CudaKernel make_cuda_geglu(const OpSpec& spec, CudaContext& /*context*/) {
  return make_gated<Geglu>(spec);
}

CudaKernel make_cuda_geglu_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_gated_backward<GegluBackward>(spec);
}

CudaKernel make_cuda_gelu(const OpSpec& spec, CudaContext& /*context*/) {
  return make_map<Gelu>(spec);
}

CudaKernel make_cuda_gelu_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_map_backward<GeluBackward>(spec);
}

CudaKernel make_cuda_relu2(const OpSpec& spec, CudaContext& /*context*/) {
  return make_map<Relu2>(spec);
}

CudaKernel make_cuda_relu2_backward(const OpSpec& spec, CudaContext& /*context*/) {
  return make_map_backward<Relu2Backward>(spec);
}

}  // namespace braid
