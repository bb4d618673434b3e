#include "backends/cuda/kernels/wide_result.h"

#include <vector>

#include "backends/cuda/kernels/elementwise_map.cuh"
#include "backends/cuda/kernels/scratch_sizes.h"

namespace braid {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

struct Rounded {
  __device__ float operator()(float a) const { return a; }
};

OpSpec with_fp32_result(OpSpec spec, size_t result) {
  spec.operands[result].dtype = DType::kF32;
  spec.operands[result].access = Access::kWrite;
  for (Attribute& attribute : spec.attributes) {
    if (attribute.name == "accumulate") {
      attribute.value = false;
    }
  }
  return spec;
}

}  // namespace

CudaKernel with_wide_result(const OpSpec& spec, size_t result,
                            const std::function<CudaKernel(const OpSpec&)>& make) {
  const CudaKernel kernel = make(with_fp32_result(spec, result));
  const size_t wide_bytes = wide_result_bytes(spec.operands[result]);
  const int64_t count = spec.operands[result].shape.num_elems();
  const bool accumulate = spec.operands[result].access == Access::kReadWrite;
  return {.launch =
              [=](const CudaKernelArgs& args) {
                std::vector<std::byte*> operands(args.operands.begin(), args.operands.end());
                operands[result] = args.scratch;
                kernel.launch({.operands = operands,
                               .scratch = args.scratch + wide_bytes,
                               .stream = args.stream});
                MapArgs<float, Bf16, Bf16> sums{.a = reinterpret_cast<const float*>(args.scratch),
                                                .out = args.data<Bf16>(result),
                                                .count = count};
                if (accumulate) {
                  sums.b = sums.out;
                  launch_map<true>(Sum{}, sums, args.stream);
                } else {
                  launch_map<false>(Rounded{}, sums, args.stream);
                }
              },
          .scratch_bytes = wide_bytes + kernel.scratch_bytes};
}

}  // namespace braid
