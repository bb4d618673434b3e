#include "ops/offload.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"

// Copies by the copy engines, which leave the SMs to kernels. The host memory is page-locked (the
// executor's arena): a copy then runs concurrently with all other work and may be a graph node. The
// direction is given explicitly, so that a buffer in the wrong memory is an error.
namespace braid {
namespace {

CudaKernel transfer(const OpSpec& spec, cudaMemcpyKind direction) {
  const size_t bytes =
      static_cast<size_t>(spec.operands[0].shape.num_elems()) * dtype_bytes(spec.operands[0].dtype);
  return {.launch = [=](const CudaKernelArgs& args) {
    BRAID_CUDA_CHECK(
        cudaMemcpyAsync(args.operands[1], args.operands[0], bytes, direction, args.stream));
  }};
}

}  // namespace

CudaKernel make_cuda_offload(const OpSpec& spec, CudaContext& /*context*/) {
  return transfer(spec, cudaMemcpyDeviceToHost);
}

CudaKernel make_cuda_reload(const OpSpec& spec, CudaContext& /*context*/) {
  return transfer(spec, cudaMemcpyHostToDevice);
}

}  // namespace braid
